#include "common/link/local_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/link/protocol_version.h"
#include "common/link/segment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/in_child.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Time In(absl::Duration duration) { return Clock::Monotonic().Now() + duration; }
absl::Time Soon() { return In(absl::Seconds(30)); }

struct Ends {
  std::unique_ptr<LocalSocket> a;
  std::unique_ptr<LocalSocket> b;
};

Ends Connected() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {std::make_unique<LocalSocket>(UniqueFd(fds[0])),
          std::make_unique<LocalSocket>(UniqueFd(fds[1]))};
}

std::string Header(const std::string& magic, uint32_t version, uint64_t bytes,
                   uint32_t descriptors) {
  std::string header = magic;
  header.append(reinterpret_cast<const char*>(&version), sizeof(version));
  header.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  header.append(reinterpret_cast<const char*>(&descriptors), sizeof(descriptors));
  return header;
}

void SendRaw(const LocalSocket& socket, const std::string& bytes) {
  ASSERT_EQ(send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

// With descriptors, which may be more than Send takes.
void SendRaw(const LocalSocket& socket, const std::string& bytes, const std::vector<int>& fds) {
  std::vector<char> control(CMSG_SPACE(sizeof(int) * fds.size()));
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
  std::memcpy(CMSG_DATA(rights), fds.data(), sizeof(int) * fds.size());
  ASSERT_EQ(sendmsg(socket.fd(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

// A pipe whose reading end sees when all descriptors of the writing end are closed.
struct Pipe {
  Pipe() {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    reads = UniqueFd(fds[0]);
    writes = UniqueFd(fds[1]);
  }
  bool AllWritersClosed() {
    writes = UniqueFd();
    char byte;
    return read(reads.get(), &byte, 1) == 0;
  }
  UniqueFd reads;
  UniqueFd writes;
};

TEST(LocalSocket, Send_AnySize_ArrivesWholeAndInOrder) {
  const Ends ends = Connected();
  const std::vector<std::string> sent = {
      "", "a", std::string("\0b", 2), std::string(70000, 'c'), std::string(3 << 20, 'd'), "e"};
  std::thread sender([&] {
    for (const std::string& bytes : sent) EXPECT_TRUE(ends.a->Send(bytes, {}, Soon()).ok());
  });
  for (const std::string& bytes : sent) {
    const absl::StatusOr<LocalSocket::Message> message = ends.b->Receive(Soon());
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_TRUE(message->bytes == bytes) << message->bytes.size() << " for " << bytes.size();
    EXPECT_TRUE(message->descriptors.empty());
  }
  sender.join();
}

TEST(LocalSocket, Send_Descriptors_ArriveWithTheirOwnMessage) {
  const Ends ends = Connected();
  Pipe first;
  Pipe second;
  ASSERT_TRUE(ends.a->Send("none", {}, Soon()).ok());
  ASSERT_TRUE(ends.a->Send("both", {first.writes.get(), second.writes.get()}, Soon()).ok());
  ASSERT_TRUE(ends.a->Send("", {second.writes.get()}, Soon()).ok());
  EXPECT_TRUE(ends.b->Receive(Soon())->descriptors.empty());
  const absl::StatusOr<LocalSocket::Message> both = ends.b->Receive(Soon());
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->bytes, "both");
  ASSERT_EQ(both->descriptors.size(), 2u);
  for (const UniqueFd& fd : both->descriptors) {
    EXPECT_NE(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  }
  ASSERT_EQ(write(both->descriptors[1].get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(second.reads.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  EXPECT_EQ(ends.b->Receive(Soon())->descriptors.size(), 1u);
}

TEST(LocalSocket, Send_MostDescriptors_AllArrive) {
  const Ends ends = Connected();
  Pipe pipe;
  const std::vector<int> fds(LocalSocket::kMaxDescriptors, pipe.writes.get());
  ASSERT_TRUE(ends.a->Send("all", fds, Soon()).ok());
  absl::StatusOr<LocalSocket::Message> message = ends.b->Receive(Soon());
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->descriptors.size(), fds.size());
  EXPECT_FALSE(pipe.AllWritersClosed());
  message->descriptors.clear();
  EXPECT_TRUE(pipe.AllWritersClosed());
}

TEST(LocalSocket, Send_TooMuch_IsRefusedAndLaterOnesGo) {
  const Ends ends = Connected();
  const std::vector<int> fds(LocalSocket::kMaxDescriptors + 1, ends.a->fd());
  EXPECT_EQ(ends.a->Send("", fds, Soon()).code(), absl::StatusCode::kInvalidArgument);
  // Never read: only its size is looked at.
  const absl::string_view large("", LocalSocket::kMaxMessageBytes + 1);
  EXPECT_EQ(ends.a->Send(large, {}, Soon()).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(ends.a->Send("fine", {}, Soon()).ok());
  EXPECT_EQ(ends.b->Receive(Soon())->bytes, "fine");
}

TEST(LocalSocket, Segment_PassedBetweenThreads_IsShared) {
  const Ends ends = Connected();
  const SegmentLabel label = {SegmentKind::kParameters, 1, 2, 3};
  std::thread owner([&] {
    const absl::StatusOr<Segment> segment = Segment::Create(label, 5000, "parameters of rank 1");
    ASSERT_TRUE(segment.ok()) << segment.status();
    static_cast<char*>(segment->data())[4999] = 9;
    EXPECT_TRUE(ends.a->Send("parameters", {segment->fd()}, Soon()).ok());
  });
  absl::StatusOr<LocalSocket::Message> message = ends.b->Receive(Soon());
  owner.join();
  ASSERT_TRUE(message.ok() && message->descriptors.size() == 1) << message.status();
  const absl::StatusOr<Segment> attached =
      Segment::Attach(std::move(message->descriptors[0]), label, 5000, "parameters of rank 1");
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(static_cast<char*>(attached->data())[4999], 9);
}

TEST(LocalSocket, Segment_PassedBetweenProcesses_OutlivesItsCreator) {
  Ends ends = Connected();
  const SegmentLabel label = {SegmentKind::kParameters, 1, 2, 3};
  testing::Child child([&] {
    const absl::StatusOr<Segment> segment = Segment::Create(label, 5000, "parameters of rank 1");
    if (!segment.ok()) return 1;
    static_cast<char*>(segment->data())[4999] = 9;
    return ends.a->Send("parameters", {segment->fd()}, Soon()).ok() ? 0 : 2;
  });
  absl::StatusOr<LocalSocket::Message> message = ends.b->Receive(Soon());
  EXPECT_EQ(child.Wait(), 0);
  ASSERT_TRUE(message.ok() && message->descriptors.size() == 1) << message.status();
  const absl::StatusOr<Segment> attached =
      Segment::Attach(std::move(message->descriptors[0]), label, 5000, "parameters of rank 1");
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(static_cast<char*>(attached->data())[4999], 9);
}

TEST(LocalSocket, Receive_NothingComes_EndsAtTheDeadlineAndGoesOnLater) {
  const Ends ends = Connected();
  const absl::Time deadline = In(absl::Milliseconds(3));
  EXPECT_TRUE(absl::IsDeadlineExceeded(ends.b->Receive(deadline).status()));
  EXPECT_GE(Clock::Monotonic().Now(), deadline);
  ASSERT_TRUE(ends.a->Send("late", {}, Soon()).ok());
  EXPECT_EQ(ends.b->Receive(Soon())->bytes, "late");
}

TEST(LocalSocket, Receive_DeadlineWithinAMessage_GoesOnWhereItStopped) {
  const Ends ends = Connected();
  const std::string message = Header("oslk", kLinkProtocolVersion, 6, 0) + "abcdef";
  for (size_t i = 0; i + 1 < message.size(); ++i) {
    SendRaw(*ends.a, message.substr(i, 1));
    ASSERT_TRUE(absl::IsDeadlineExceeded(ends.b->Receive(absl::InfinitePast()).status())) << i;
  }
  SendRaw(*ends.a, "f");
  const absl::StatusOr<LocalSocket::Message> whole = ends.b->Receive(absl::InfinitePast());
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->bytes, "abcdef");
}

TEST(LocalSocket, Send_PeerDoesNotReceive_EndsAtTheDeadlineAndHangsUp) {
  const Ends ends = Connected();
  const absl::Status status =
      ends.a->Send(std::string(8 << 20, 'x'), {}, In(absl::Milliseconds(3)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  // Half a message is out: nothing can follow it.
  EXPECT_TRUE(absl::IsUnavailable(ends.a->Send("more", {}, Soon())));
  EXPECT_TRUE(absl::IsUnavailable(ends.b->Receive(Soon()).status()));
}

TEST(LocalSocket, Receive_PeerLeavesBetweenMessages_IsUnavailableAfterTheLast) {
  Ends ends = Connected();
  ASSERT_TRUE(ends.a->Send("last", {}, Soon()).ok());
  ends.a.reset();
  EXPECT_EQ(ends.b->Receive(Soon())->bytes, "last");
  EXPECT_TRUE(absl::IsUnavailable(ends.b->Receive(Soon()).status()));
  EXPECT_TRUE(absl::IsUnavailable(ends.b->Send("to nobody", {}, Soon())));
}

TEST(LocalSocket, Receive_PeerLeavesWithinAMessage_IsUnavailableAndClosesDescriptors) {
  Ends ends = Connected();
  Pipe pipe;
  SendRaw(*ends.a, Header("oslk", kLinkProtocolVersion, 6, 1) + "abc", {pipe.writes.get()});
  ends.a.reset();
  const absl::Status status = ends.b->Receive(Soon()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("in the middle of a message"));
  EXPECT_TRUE(pipe.AllWritersClosed());
}

TEST(LocalSocket, Receive_AnotherProtocolVersion_NamesBothAndCanStillAnswer) {
  const Ends ends = Connected();
  Pipe pipe;
  SendRaw(*ends.a, Header("oslk", 77, 3, 1) + "abc", {pipe.writes.get()});
  const absl::Status status = ends.b->Receive(Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("version 77"), HasSubstr("version 1")));
  EXPECT_TRUE(pipe.AllWritersClosed());
  EXPECT_EQ(ends.b->Receive(Soon()).status(), status);
  // The header of the answer tells the other side likewise.
  EXPECT_TRUE(ends.b->Send("", {}, Soon()).ok());
}

TEST(LocalSocket, Receive_VersionOfAShorterHeader_DoesNotWaitForTheRest) {
  const Ends ends = Connected();
  SendRaw(*ends.a, Header("oslk", 2, 0, 0).substr(0, 8));
  EXPECT_EQ(ends.b->Receive(absl::InfinitePast()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(LocalSocket, Receive_NoMessage_IsRefused) {
  const Ends ends = Connected();
  SendRaw(*ends.a, "GET / HTTP/1.1\r\n\r\n\r\n");
  const absl::Status status = ends.b->Receive(Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("none of optshard's processes"));
}

TEST(LocalSocket, Receive_HugeLength_IsRefusedBeforeItIsAllocated) {
  for (const uint64_t bytes : {uint64_t{LocalSocket::kMaxMessageBytes} + 1, ~uint64_t{0}}) {
    const Ends ends = Connected();
    SendRaw(*ends.a, Header("oslk", kLinkProtocolVersion, bytes, 0));
    const absl::Status status = ends.b->Receive(Soon()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(bytes, " bytes")));
  }
}

TEST(LocalSocket, Receive_LargestLengthButNoBytes_TakesNoMemoryForIt) {
  const Ends ends = Connected();
  SendRaw(*ends.a, Header("oslk", kLinkProtocolVersion, LocalSocket::kMaxMessageBytes, 0) + "a");
  rusage before;
  rusage after;
  getrusage(RUSAGE_SELF, &before);
  EXPECT_TRUE(absl::IsDeadlineExceeded(ends.b->Receive(absl::InfinitePast()).status()));
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 16 << 10);  // KiB
}

TEST(LocalSocket, Receive_DescriptorsAreNotThoseAnnounced_IsRefusedAndClosesThem) {
  for (const uint32_t announced : {0u, 2u}) {
    const Ends ends = Connected();
    Pipe pipe;
    SendRaw(*ends.a, Header("oslk", kLinkProtocolVersion, 3, announced) + "abc",
            {pipe.writes.get()});
    const absl::Status status = ends.b->Receive(Soon()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("announced ", announced, " descriptors")));
    EXPECT_TRUE(pipe.AllWritersClosed());
  }
}

TEST(LocalSocket, Receive_MoreDescriptorsThanThereIsRoomFor_IsAnErrorAndClosesThem) {
  const Ends ends = Connected();
  Pipe pipe;
  SendRaw(*ends.a, Header("oslk", kLinkProtocolVersion, 0, LocalSocket::kMaxDescriptors),
          std::vector<int>(LocalSocket::kMaxDescriptors + 1, pipe.writes.get()));
  const absl::Status status = ends.b->Receive(Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(pipe.AllWritersClosed());
}

TEST(LocalSocket, Receive_ProcessMayOpenNoMore_IsAnError) {
  const Ends ends = Connected();
  ASSERT_TRUE(ends.a->Send("two", {ends.a->fd(), ends.a->fd()}, Soon()).ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd next(dup(ends.a->fd()));
  const rlimit full = {static_cast<rlim_t>(next.get()), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &full), 0);
  const absl::Status status = ends.b->Receive(Soon()).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit -n"));
}

TEST(LocalSocket, HangUp_OneReceives_WakesItAndThePeer) {
  const Ends ends = Connected();
  std::thread here(
      [&] { EXPECT_TRUE(absl::IsUnavailable(ends.a->Receive(absl::InfiniteFuture()).status())); });
  std::thread there(
      [&] { EXPECT_TRUE(absl::IsUnavailable(ends.b->Receive(absl::InfiniteFuture()).status())); });
  ends.a->HangUp();
  here.join();
  there.join();
  EXPECT_TRUE(absl::IsUnavailable(ends.a->Send("later", {}, Soon())));
  EXPECT_TRUE(absl::IsUnavailable(ends.b->Send("later", {}, Soon())));
  pollfd descriptor = {ends.b->fd(), POLLRDHUP, 0};
  EXPECT_EQ(poll(&descriptor, 1, 0), 1);
}

TEST(LocalSocket, HangUp_OneSends_WakesIt) {
  const Ends ends = Connected();
  std::thread here([&] {
    EXPECT_TRUE(
        absl::IsUnavailable(ends.a->Send(std::string(8 << 20, 'x'), {}, absl::InfiniteFuture())));
  });
  ends.a->HangUp();
  here.join();
}

TEST(LocalSocket, Peer_OfAPair_IsThisProcess) {
  const Ends ends = Connected();
  const absl::StatusOr<PeerCredentials> peer = ends.a->Peer();
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, getuid());
  EXPECT_EQ(peer->gid, getgid());
}

}  // namespace
}  // namespace optshard

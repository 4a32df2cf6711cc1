#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/link/local_address.h"
#include "common/link/local_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/in_child.h"
#include "tests/testing/other_user.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using testing::BecomeOtherUser;
using testing::ConnectUnchecked;
using testing::ForeignListener;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::KnowsOtherUser;
using testing::kOtherUser;

absl::Time In(absl::Duration duration) { return Clock::Monotonic().Now() + duration; }
absl::Time Soon() { return In(absl::Seconds(30)); }

mode_t ModeOf(const std::string& path) {
  struct stat status = {};
  EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
  return status.st_mode;
}

// Listens like a program that knows of no lock.
UniqueFd RawListener(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const KernelAddress address = *ToKernel(path);
  EXPECT_EQ(bind(fd.get(), address.get(), address.bytes), 0);
  EXPECT_EQ(listen(fd.get(), 1), 0);
  return fd;
}

class LocalListenerTest : public ::testing::Test {
 protected:
  // Bazel's own folder for it is too deep for a socket's path.
  LocalListenerTest() {
    char folder[] = "/tmp/optshard_XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ + "/socket";
  }
  ~LocalListenerTest() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> Standing() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  absl::Status ListenStatus() const { return LocalListener::Listen(path_).status(); }

  std::string folder_;
  std::string path_;
};

TEST_F(LocalListenerTest, Accept_ChildConnects_KnowsItsPidAndUser) {
  const auto listener = *LocalListener::Listen(path_);
  EXPECT_EQ(listener->address(), path_);
  testing::Child child([&] {
    const auto socket = LocalSocket::Connect(path_, Soon());
    if (!socket.ok()) return 1;
    const auto hello = (*socket)->Receive(Soon());
    if (!hello.ok() || hello->bytes != "hello") return 2;
    const auto peer = (*socket)->Peer();
    return peer.ok() && peer->pid == getppid() ? 0 : 3;
  });
  const auto accepted = listener->Accept(Soon());
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  const absl::StatusOr<PeerCredentials> peer = (*accepted)->Peer();
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->pid, child.pid());
  EXPECT_EQ(peer->uid, getuid());
  EXPECT_EQ(peer->gid, getgid());
  EXPECT_TRUE((*accepted)->Send("hello", {}, Soon()).ok());
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(LocalListenerTest, Listen_AnyUmask_IsOfMode0700) {
  for (const mode_t mask : {mode_t{0}, mode_t{022}, mode_t{0777}}) {
    const mode_t before = umask(mask);
    const auto listener = LocalListener::Listen(path_);
    umask(before);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_EQ(ModeOf(path_), static_cast<mode_t>(S_IFSOCK | 0700)) << mask;
  }
}

TEST_F(LocalListenerTest, Destroyed_LeavesNothing) {
  { const auto listener = *LocalListener::Listen(path_); }
  EXPECT_THAT(Standing(), IsEmpty());
}

TEST_F(LocalListenerTest, Destroyed_AnotherFileStandsThere_LeavesThat) {
  {
    const auto listener = *LocalListener::Listen(path_);
    std::filesystem::remove(path_);
    std::ofstream(path_) << "mine";
  }
  EXPECT_THAT(Standing(), ::testing::ElementsAre("socket"));
}

TEST_F(LocalListenerTest, Destroyed_InAForkedChild_LeavesTheSocket) {
  auto listener = *LocalListener::Listen(path_);
  testing::Child child([&] {
    listener.reset();
    return 0;
  });
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_TRUE(LocalSocket::Connect(path_, absl::InfinitePast()).ok());
}

TEST_F(LocalListenerTest, Destroyed_AfterTheFolderOfTheProcessChanged_RemovesItsOwn) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  auto listener = LocalListener::Listen("relative");
  std::filesystem::current_path(before);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(LocalSocket::Connect(folder_ + "/relative", absl::InfinitePast()).ok());
  *listener = nullptr;
  EXPECT_THAT(Standing(), IsEmpty());
}

TEST_F(LocalListenerTest, Listen_TwiceInOneProcess_IsRefused) {
  const auto listener = *LocalListener::Listen(path_);
  const absl::Status status = ListenStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path_), HasSubstr("living process")));
  EXPECT_TRUE(LocalSocket::Connect(path_, absl::InfinitePast()).ok());
}

TEST_F(LocalListenerTest, Listen_AnotherProcessDoes_IsRefusedUntilItIsKilled) {
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const UniqueFd reads(ready[0]);
  const UniqueFd writes(ready[1]);
  testing::Child child([&] {
    const auto listener = LocalListener::Listen(path_);
    if (!listener.ok() || write(writes.get(), "x", 1) != 1) return 1;
    while (true) pause();
  });
  char byte;
  ASSERT_EQ(read(reads.get(), &byte, 1), 1);
  EXPECT_EQ(ListenStatus().code(), absl::StatusCode::kAlreadyExists);
  child.Kill();
  child.Wait();
  EXPECT_TRUE(S_ISSOCK(ModeOf(path_)));  // left over
  EXPECT_TRUE(absl::IsUnavailable(LocalSocket::Connect(path_, absl::InfinitePast()).status()));
  const auto listener = LocalListener::Listen(path_);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(LocalSocket::Connect(path_, absl::InfinitePast()).ok());
}

TEST_F(LocalListenerTest, Listen_ManyThreadsComeAndGo_NotTwoAtATime) {
  std::atomic<int> listening{0};
  std::atomic<int> had{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 1000; ++turn) {
        const auto listener = LocalListener::Listen(path_);
        if (!listener.ok()) {
          EXPECT_EQ(listener.status().code(), absl::StatusCode::kAlreadyExists)
              << listener.status();
          continue;
        }
        had.fetch_add(1);
        EXPECT_EQ(listening.fetch_add(1), 0);
        EXPECT_TRUE(S_ISSOCK(ModeOf(path_)));
        listening.fetch_sub(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(had.load(), 0);
  EXPECT_THAT(Standing(), IsEmpty());
}

TEST_F(LocalListenerTest, Listen_SomebodyWithoutALockListens_IsRefused) {
  UniqueFd other = RawListener(path_);
  EXPECT_EQ(ListenStatus().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(S_ISSOCK(ModeOf(path_)));
  other = UniqueFd();
  EXPECT_TRUE(LocalListener::Listen(path_).ok());
}

TEST_F(LocalListenerTest, Listen_AFileStandsThere_IsRefusedAndLeavesIt) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(ListenStatus().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Standing(), ::testing::ElementsAre("socket"));
  EXPECT_EQ(std::filesystem::file_size(path_), 8u);
}

TEST_F(LocalListenerTest, Listen_ALinkStandsThere_IsRefused) {
  const UniqueFd other = RawListener(folder_ + "/other");
  for (const std::string target : {"nothing", "other"}) {
    std::filesystem::create_symlink(target, path_);
    const absl::Status status = ListenStatus();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("symbolic link"));
    EXPECT_TRUE(S_ISLNK(ModeOf(path_)));
    std::filesystem::remove(path_);
  }
  EXPECT_TRUE(S_ISSOCK(ModeOf(folder_ + "/other")));
}

TEST_F(LocalListenerTest, Listen_LockIsALink_IsRefused) {
  std::filesystem::create_symlink("target", path_ + ".lock");
  EXPECT_EQ(ListenStatus().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Standing(), ::testing::ElementsAre("socket.lock"));
}

TEST_F(LocalListenerTest, Listen_FolderIsNotThere_IsRefused) {
  path_ = folder_ + "/none/socket";
  const absl::Status status = ListenStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder_ + "/none' is not there"));
}

TEST_F(LocalListenerTest, Listen_OthersMayWriteToTheFolder_IsRefusedUnlessSticky) {
  for (const mode_t mode : {mode_t{0770}, mode_t{0707}}) {
    ASSERT_EQ(chmod(folder_.c_str(), mode), 0);
    const absl::Status status = ListenStatus();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("other users may write"),
                                                     HasSubstr(folder_), HasSubstr("mode 07")));
    EXPECT_THAT(Standing(), IsEmpty());
  }
  ASSERT_EQ(chmod(folder_.c_str(), 01777), 0);
  EXPECT_TRUE(ListenStatus().ok()) << ListenStatus();
}

TEST_F(LocalListenerTest, Listen_FolderOfAnotherUser_IsRefused) {
  if (!KnowsOtherUser()) GTEST_SKIP() << "only root can give a folder away";
  ASSERT_EQ(chown(folder_.c_str(), kOtherUser, kOtherUser), 0);
  const absl::Status status = ListenStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("belongs to user 65534"));
}

TEST_F(LocalListenerTest, Connect_AnotherUser_IsDenied) {
  if (!KnowsOtherUser()) GTEST_SKIP() << "only root can become another user";
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  const auto listener = *LocalListener::Listen(path_);
  const auto connect = [&] {
    if (!BecomeOtherUser()) return 100;
    if (ConnectUnchecked(path_) != nullptr) return 101;
    return static_cast<int>(LocalSocket::Connect(path_, Soon()).status().code());
  };
  EXPECT_EQ(testing::Child(connect).Wait(), static_cast<int>(absl::StatusCode::kPermissionDenied));
  ASSERT_EQ(chmod(path_.c_str(), 0777), 0);  // it is the mode that keeps it out
  EXPECT_EQ(testing::Child(connect).Wait(), 101);
}

TEST(LocalListener, Accept_AnotherUserHasConnected_CheckPeerUserNamesBoth) {
  if (!KnowsOtherUser()) GTEST_SKIP() << "only root can become another user";
  const std::string name = absl::StrCat("@optshard_test_", getpid());
  const auto listener = *LocalListener::Listen(name);
  testing::Child stranger([&] {
    if (!BecomeOtherUser()) return 100;
    const auto socket = ConnectUnchecked(name);
    if (socket == nullptr) return 101;
    return absl::IsUnavailable(socket->Receive(Soon()).status()) ? 0 : 102;
  });
  {
    const auto accepted = listener->Accept(Soon());
    ASSERT_TRUE(accepted.ok()) << accepted.status();
    const absl::Status user = (*accepted)->CheckPeerUser();
    EXPECT_EQ(user.code(), absl::StatusCode::kPermissionDenied) << user;
    EXPECT_THAT(std::string(user.message()),
                AllOf(HasSubstr(absl::StrCat("process ", stranger.pid())), HasSubstr("user 65534"),
                      HasSubstr("user 0")));
  }
  EXPECT_EQ(stranger.Wait(), 0);
}

TEST(LocalListener, Connect_AnotherUserListens_IsDeniedAndSendsNothing) {
  if (!KnowsOtherUser()) GTEST_SKIP() << "only root can become another user";
  const std::string name = absl::StrCat("@optshard_test_", getpid());
  ForeignListener stranger(name);
  const absl::Status status = LocalSocket::Connect(name, Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(name), HasSubstr("user 65534")));
  EXPECT_EQ(stranger.WhatCame(), "");
}

TEST_F(LocalListenerTest, Listen_LongestPath_IsTakenAndOneMoreRefused) {
  path_ += std::string(107 - path_.size(), 'x');
  {
    const auto listener = LocalListener::Listen(path_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_TRUE(LocalSocket::Connect(path_, absl::InfinitePast()).ok());
  }
  path_ += "x";
  for (const absl::Status& status :
       {ListenStatus(), LocalSocket::Connect(path_, Soon()).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(path_), HasSubstr("108 bytes"), HasSubstr("at most 107")));
  }
  EXPECT_THAT(Standing(), IsEmpty());
}

TEST(LocalListener, Listen_AddressThatNamesNothing_IsRefused) {
  for (const std::string& address : {std::string(), std::string("@"), std::string("a\0b", 3)}) {
    EXPECT_EQ(LocalListener::Listen(address).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(LocalSocket::Connect(address, Soon()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(LocalListener, Listen_AbstractName_IsTakenOnceAndEndsWithIt) {
  const std::string name = absl::StrCat("@optshard_test_", getpid());
  {
    const auto listener = LocalListener::Listen(name);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_EQ(LocalListener::Listen(name).status().code(), absl::StatusCode::kAlreadyExists);
    const auto socket = LocalSocket::Connect(name, Soon());
    ASSERT_TRUE(socket.ok()) << socket.status();
    const auto accepted = (*listener)->Accept(Soon());
    ASSERT_TRUE(accepted.ok()) << accepted.status();
    EXPECT_TRUE((*socket)->Send("abstract", {}, Soon()).ok());
    EXPECT_EQ((*accepted)->Receive(Soon())->bytes, "abstract");
  }
  EXPECT_TRUE(absl::IsUnavailable(LocalSocket::Connect(name, absl::InfinitePast()).status()));
}

TEST_F(LocalListenerTest, Connect_NobodyListens_IsUnavailableAtTheDeadline) {
  const absl::Time deadline = In(absl::Milliseconds(5));
  const absl::Status status = LocalSocket::Connect(path_, deadline).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
  EXPECT_GE(Clock::Monotonic().Now(), deadline);
}

TEST_F(LocalListenerTest, Connect_SomebodyListensLater_WaitsForIt) {
  std::atomic<bool> asking{false};
  std::thread caller([&] {
    asking.store(true);
    const auto socket = LocalSocket::Connect(path_, Soon());
    EXPECT_TRUE(socket.ok()) << socket.status();
  });
  while (!asking.load()) std::this_thread::yield();
  const auto listener = *LocalListener::Listen(path_);
  EXPECT_TRUE(listener->Accept(Soon()).ok());
  caller.join();
}

TEST_F(LocalListenerTest, Accept_NobodyComes_EndsAtTheDeadline) {
  const auto listener = *LocalListener::Listen(path_);
  const absl::Time deadline = In(absl::Milliseconds(3));
  EXPECT_TRUE(absl::IsDeadlineExceeded(listener->Accept(deadline).status()));
  EXPECT_GE(Clock::Monotonic().Now(), deadline);
  EXPECT_TRUE(LocalSocket::Connect(path_, Soon()).ok());
  EXPECT_TRUE(listener->Accept(absl::InfinitePast()).ok());
}

TEST_F(LocalListenerTest, HangUp_OneAccepts_WakesIt) {
  const auto listener = *LocalListener::Listen(path_);
  std::thread accepting(
      [&] { EXPECT_TRUE(absl::IsUnavailable(listener->Accept(absl::InfiniteFuture()).status())); });
  listener->HangUp();
  accepting.join();
  EXPECT_TRUE(absl::IsUnavailable(listener->Accept(Soon()).status()));
  EXPECT_TRUE(absl::IsUnavailable(LocalSocket::Connect(path_, absl::InfinitePast()).status()));
}

}  // namespace
}  // namespace optshard

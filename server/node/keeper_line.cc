#include "server/node/keeper_line.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/link/passed_descriptors.h"
#include "common/link/poll_until.h"

namespace optshard {
namespace {

constexpr size_t kMaxNameBytes = 256;
// A rank's memory: five segments for each admission of param groups.
constexpr size_t kMaxUnitDescriptors = 250;
constexpr size_t kMaxPacketBytes = 4096;
// As many as the kernel passes at once (SCM_MAX_FD), so that with room for them none get lost
// unless this process may not open them.
constexpr size_t kMaxPacketDescriptors = 253;

// Each is followed by text: the name, the status's message.
struct RequestHead {
  uint64_t number;
  KeeperRequest::Kind kind;
};

struct AnswerHead {
  uint64_t number;
  absl::StatusCode code;
};

using Room = DescriptorRoom<kMaxPacketDescriptors>;

template <typename Head>
std::string WithText(const Head& head, absl::string_view text) {
  std::string packet(sizeof(head), '\0');
  std::memcpy(&packet[0], &head, sizeof(head));
  packet.append(text.data(), text.size());
  return packet;
}

template <typename Head>
absl::StatusOr<Head> HeadOf(absl::string_view packet) {
  Head head;
  if (packet.size() < sizeof(head)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet of ", packet.size(),
                     " bytes came on the line between shard server and keeper; they have at least ",
                     sizeof(head)));
  }
  std::memcpy(&head, packet.data(), sizeof(head));
  return head;
}

absl::Status Ended() { return absl::UnavailableError("the other end of the line is closed"); }

}  // namespace

absl::Status CheckKeptName(absl::string_view name) {
  if (!name.empty() && name.size() <= kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the name of a kept unit has 1 to ", kMaxNameBytes,
                                                 " bytes, not ", name.size()));
}

absl::Status CheckKeptDescriptors(absl::string_view name, size_t descriptors) {
  if (descriptors > 0 && descriptors <= kMaxUnitDescriptors) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("unit '", name, "' has ", descriptors,
                                                 " descriptors; a keeper keeps 1 to ",
                                                 kMaxUnitDescriptors, " as a unit"));
}

std::string Encode(const KeeperRequest& request) {
  RequestHead head = {};
  head.number = request.number;
  head.kind = request.kind;
  return WithText(head, request.name);
}

std::string Encode(const KeeperAnswer& answer) {
  AnswerHead head = {};
  head.number = answer.number;
  head.code = answer.status.code();
  return WithText(head, answer.status.message().substr(0, kMaxPacketBytes - sizeof(head)));
}

absl::StatusOr<KeeperRequest> DecodeRequest(absl::string_view packet) {
  const absl::StatusOr<RequestHead> head = HeadOf<RequestHead>(packet);
  if (!head.ok()) return head.status();
  if (head->kind != KeeperRequest::Kind::kKeep && head->kind != KeeperRequest::Kind::kForget) {
    return absl::InvalidArgumentError(
        absl::StrCat("a keeper has no request of kind ", static_cast<uint32_t>(head->kind)));
  }
  KeeperRequest request;
  request.kind = head->kind;
  request.number = head->number;
  request.name = std::string(packet.substr(sizeof(*head)));
  return request;
}

absl::StatusOr<KeeperAnswer> DecodeAnswer(absl::string_view packet) {
  const absl::StatusOr<AnswerHead> head = HeadOf<AnswerHead>(packet);
  if (!head.ok()) return head.status();
  return KeeperAnswer{head->number, absl::Status(head->code, packet.substr(sizeof(*head)))};
}

absl::Status SendPacket(int socket, absl::string_view bytes, absl::Span<const int> descriptors,
                        absl::Time deadline) {
  if (bytes.size() > kMaxPacketBytes || descriptors.size() > kMaxPacketDescriptors) {
    return absl::InvalidArgumentError(absl::StrCat(
        "packet of ", bytes.size(), " bytes with ", descriptors.size(), " descriptors: at most ",
        kMaxPacketBytes, " bytes with ", kMaxPacketDescriptors, " descriptors go"));
  }
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};  // sendmsg does not write to it
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Room room = {};
  PutDescriptors(descriptors, room.bytes, &message);
  while (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (IsClosedByPeer(error)) return Ended();
    if (error == ETOOMANYREFS) return TooManyDescriptorsUnderWay();
    if (error != EAGAIN) return absl::ErrnoToStatus(error, "sending a packet failed");
    if (!PollUntil(socket, POLLOUT, deadline)) {
      return absl::DeadlineExceededError("the other end of the line takes nothing: is it stopped?");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Packet> ReceivePacket(int socket, absl::Time deadline) {
  Packet packet;
  packet.bytes.resize(kMaxPacketBytes);
  iovec part = {&packet.bytes[0], packet.bytes.size()};
  Room room;
  msghdr message;
  ssize_t bytes;
  while (true) {
    message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room.bytes;
    message.msg_controllen = sizeof(room);
    bytes = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (bytes >= 0) break;
    const int error = errno;
    if (error == EINTR) continue;
    if (IsClosedByPeer(error)) return Ended();
    if (error != EAGAIN) return absl::ErrnoToStatus(error, "receiving a packet failed");
    if (!PollUntil(socket, POLLIN, deadline)) {
      return absl::DeadlineExceededError("the other end of the line says nothing: is it stopped?");
    }
  }
  TakeDescriptors(&message, &packet.descriptors);
  if (bytes == 0) return Ended();
  packet.bytes.resize(static_cast<size_t>(bytes));
  packet.descriptors_lost = (message.msg_flags & MSG_CTRUNC) != 0;
  return packet;
}

}  // namespace optshard

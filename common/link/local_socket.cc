#include "common/link/local_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/link/local_address.h"
#include "common/link/passed_descriptors.h"
#include "common/link/poll_until.h"
#include "common/link/protocol_version.h"

namespace optshard {
namespace {

// A header, little-endian: magic (4 bytes), protocol version (4), bytes that follow (8),
// descriptors that came with the header (4). The first two keep their places in every version.
constexpr uint32_t kMagic = 0x6b6c736f;  // "oslk"
constexpr size_t kVersionEnd = 8;

// Room is made as bytes come, not for what a header claims.
constexpr size_t kFirstRoomBytes = size_t{64} << 10;

constexpr absl::Duration kShortestPause = absl::Milliseconds(1);
constexpr absl::Duration kLongestPause = absl::Milliseconds(50);

void Put(uint64_t value, size_t bytes, unsigned char* to) {
  for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<unsigned char>(value >> (8 * i));
}

uint64_t Get(const unsigned char* from, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{from[i]} << (8 * i);
  return value;
}

absl::Status PeerGone(absl::string_view when) {
  return absl::UnavailableError(absl::StrCat("the peer of the local socket hung up ", when));
}

absl::Status HungUp() {
  return absl::UnavailableError("the local socket was hung up by this process");
}

absl::Status Late(absl::string_view what) {
  return absl::DeadlineExceededError(absl::StrCat("deadline reached ", what));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalSocket>> LocalSocket::Connect(const LocalAddress& address,
                                                                  absl::Time deadline) {
  const absl::StatusOr<KernelAddress> kernel = ToKernel(address);
  if (!kernel.ok()) return kernel.status();
  absl::Duration pause = kShortestPause;
  while (true) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return absl::ErrnoToStatus(errno, "cannot make a Unix socket");
    if (connect(fd.get(), kernel->get(), kernel->bytes) == 0) {
      auto socket = std::make_unique<LocalSocket>(std::move(fd));
      absl::Status user = socket->CheckPeerUser();
      if (!user.ok()) {
        return errors::WithContext(user, absl::StrCat("connected to '", address, "'"));
      }
      return socket;
    }
    const int error = errno;
    const std::string failed = absl::StrCat("cannot connect to '", address, "'");
    if (error == EACCES || error == EPERM) {
      return absl::PermissionDeniedError(
          absl::StrCat(failed, ": this user may not; only the user who listens there may"));
    }
    // Nobody yet, or (EAGAIN) more callers than the listener has taken so far.
    if (error != ENOENT && error != ECONNREFUSED && error != EAGAIN && error != EINTR) {
      return absl::ErrnoToStatus(error, failed);
    }
    if (Clock::Monotonic().Now() >= deadline) {
      return absl::UnavailableError(absl::StrCat(failed, " by the deadline: nobody listens there (",
                                                 std::strerror(error),
                                                 "); is the server running, and at this address?"));
    }
    PollUntil({}, std::min(deadline, Clock::Monotonic().Now() + pause));
    pause = std::min(2 * pause, kLongestPause);
  }
}

absl::Status LocalSocket::Send(absl::string_view bytes, absl::Span<const int> descriptors,
                               absl::Time deadline) {
  if (bytes.size() > kMaxMessageBytes || descriptors.size() > kMaxDescriptors) {
    return absl::InvalidArgumentError(
        absl::StrCat("message of ", bytes.size(), " bytes with ", descriptors.size(),
                     " descriptors is too large: at most ", kMaxMessageBytes, " bytes with ",
                     kMaxDescriptors, " descriptors go"));
  }
  std::array<unsigned char, kHeaderBytes> header;
  Put(kMagic, 4, header.data());
  Put(kLinkProtocolVersion, 4, header.data() + 4);
  Put(bytes.size(), 8, header.data() + 8);
  Put(descriptors.size(), 4, header.data() + 16);

  DescriptorRoom<LocalSocket::kMaxDescriptors> room = {};
  const size_t total = kHeaderBytes + bytes.size();
  size_t sent = 0;
  while (sent < total) {
    if (hung_up_.load()) return HungUp();
    iovec parts[2];
    msghdr message = {};
    message.msg_iov = parts;
    if (sent < kHeaderBytes) {
      parts[message.msg_iovlen++] = {header.data() + sent, kHeaderBytes - sent};
    }
    const size_t body = sent - std::min(sent, kHeaderBytes);
    if (body < bytes.size()) {
      // sendmsg does not write to it.
      parts[message.msg_iovlen++] = {const_cast<char*>(bytes.data()) + body, bytes.size() - body};
    }
    if (sent == 0) PutDescriptors(descriptors, room.bytes, &message);
    const ssize_t some = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (some >= 0) {
      sent += static_cast<size_t>(some);
      continue;
    }
    const int error = errno;
    if (error == EINTR) continue;
    if (IsClosedByPeer(error)) {
      return hung_up_.load() ? HungUp() : PeerGone("while a message was sent");
    }
    if (error == ETOOMANYREFS) return TooManyDescriptorsUnderWay();
    if (error != EAGAIN) return absl::ErrnoToStatus(error, "sending on a local socket failed");
    if (PollUntil(fd_.get(), POLLOUT, deadline)) continue;
    // The rest can never follow: another message would be taken for it.
    if (sent > 0) HangUp();
    return Late(absl::StrCat("sending a message to the peer of a local socket (", sent, " of ",
                             total, " bytes went)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<LocalSocket::Message> LocalSocket::Receive(absl::Time deadline) {
  if (!receive_status_.ok()) return receive_status_;
  absl::Status status = ReceiveHeader(deadline);
  if (status.ok()) status = ReceiveBody(deadline);
  if (absl::IsDeadlineExceeded(status)) return status;
  Incoming whole;
  std::swap(whole, incoming_);
  if (status.ok()) return std::move(whole.message);
  receive_status_ = status;
  return status;
}

absl::Status LocalSocket::ReceiveHeader(absl::Time deadline) {
  while (incoming_.header_bytes < kHeaderBytes) {
    const absl::StatusOr<size_t> some =
        ReceiveSome(incoming_.header.data() + incoming_.header_bytes,
                    kHeaderBytes - incoming_.header_bytes, deadline);
    if (!some.ok()) return some.status();
    incoming_.header_bytes += *some;
    if (incoming_.header_bytes < kVersionEnd) continue;
    absl::Status version = CheckVersion();
    if (!version.ok()) return version;
  }
  return CheckCounts();
}

absl::Status LocalSocket::ReceiveBody(absl::Time deadline) {
  const size_t expected = Get(incoming_.header.data() + 8, 8);
  std::string& body = incoming_.message.bytes;
  while (incoming_.body_bytes < expected) {
    if (incoming_.body_bytes == body.size()) {
      body.resize(std::min(expected, std::max(kFirstRoomBytes, 2 * body.size())));
    }
    const absl::StatusOr<size_t> some =
        ReceiveSome(&body[incoming_.body_bytes], body.size() - incoming_.body_bytes, deadline);
    if (!some.ok()) return some.status();
    incoming_.body_bytes += *some;
  }
  const size_t announced = Get(incoming_.header.data() + 16, 4);
  if (incoming_.message.descriptors.size() != announced) {
    return absl::InvalidArgumentError(absl::StrCat("the peer of the local socket announced ",
                                                   announced, " descriptors with a message, ",
                                                   incoming_.message.descriptors.size(), " came"));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> LocalSocket::ReceiveSome(void* to, size_t bytes, absl::Time deadline) {
  while (true) {
    if (hung_up_.load()) return HungUp();
    DescriptorRoom<LocalSocket::kMaxDescriptors> room;
    iovec part = {to, bytes};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room.bytes;
    message.msg_controllen = sizeof(room);
    const ssize_t some = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (some > 0) {
      TakeDescriptors(&message, &incoming_.message.descriptors);
      if ((message.msg_flags & MSG_CTRUNC) != 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat("descriptors that the peer of the local socket sent got lost: more than ",
                         kMaxDescriptors,
                         " came at once, or this process may open no more "
                         "(ulimit -n)"));
      }
      return static_cast<size_t>(some);
    }
    const int error = errno;
    if (some == 0 || IsClosedByPeer(error)) {
      if (hung_up_.load()) return HungUp();
      return PeerGone(incoming_.header_bytes == 0 ? "between two messages"
                                                  : "in the middle of a message");
    }
    if (error == EINTR) continue;
    if (error != EAGAIN) return absl::ErrnoToStatus(error, "receiving on a local socket failed");
    if (!PollUntil(fd_.get(), POLLIN, deadline)) {
      return Late("waiting for a message of the peer of a local socket");
    }
  }
}

absl::Status LocalSocket::CheckVersion() const {
  const uint64_t magic = Get(incoming_.header.data(), 4);
  if (magic != kMagic) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the peer of the local socket is none of optshard's processes: a message begins with 0x",
        absl::Hex(magic, absl::kZeroPad8), ", expected 0x", absl::Hex(kMagic, absl::kZeroPad8)));
  }
  const uint64_t version = Get(incoming_.header.data() + 4, 4);
  if (version != kLinkProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the peer of the local socket speaks link protocol version ", version,
        ", this process version ", kLinkProtocolVersion, ": run the same release on both sides"));
  }
  return absl::OkStatus();
}

absl::Status LocalSocket::CheckCounts() const {
  const uint64_t bytes = Get(incoming_.header.data() + 8, 8);
  const uint64_t descriptors = Get(incoming_.header.data() + 16, 4);
  if (bytes > kMaxMessageBytes || descriptors > kMaxDescriptors) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer of the local socket announced a message of ", bytes, " bytes with ",
                     descriptors, " descriptors: at most ", kMaxMessageBytes, " bytes with ",
                     kMaxDescriptors, " descriptors are taken"));
  }
  return absl::OkStatus();
}

absl::StatusOr<PeerCredentials> LocalSocket::Peer() const {
  ucred credentials;
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return absl::ErrnoToStatus(errno, "cannot ask who the peer of a local socket is");
  }
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

absl::Status LocalSocket::CheckPeerUser() const {
  const absl::StatusOr<PeerCredentials> peer = Peer();
  if (!peer.ok()) return peer.status();
  if (peer->uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrFormat(
      "process %d at the other end runs as user %d, this process as user %d; run both as one user",
      peer->pid, peer->uid, geteuid()));
}

void LocalSocket::HangUp() {
  hung_up_.store(true);
  shutdown(fd_.get(), SHUT_RDWR);
}

}  // namespace optshard

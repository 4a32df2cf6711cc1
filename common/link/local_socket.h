// Messages and file descriptors between processes of one host: Unix stream sockets.
#ifndef OPTSHARD_COMMON_LINK_LOCAL_SOCKET_H_
#define OPTSHARD_COMMON_LINK_LOCAL_SOCKET_H_

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/link/unique_fd.h"
#include "common/request_limits.h"

namespace optshard {

// A path of the file system, or "@NAME" for one of Linux's abstract names. An abstract name ends
// with its process and has no permissions: any user can bind it or connect to it.
using LocalAddress = std::string;

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

// One end of a connection. Deadlines are in the time of Clock::Monotonic(). At most one thread
// sends and one receives at a time. Any thread may call HangUp.
class LocalSocket {
 public:
  struct Message {
    std::string bytes;
    std::vector<UniqueFd> descriptors;
  };
  static constexpr size_t kMaxMessageBytes = kMaxLocalMessageBytes;
  static constexpr size_t kMaxDescriptors = 64;

  // Connects to a process of the same user. Nothing is sent to anybody else: another user may have
  // bound the name first.
  //   UNAVAILABLE        nobody listens at the address by the deadline; it tries again until then
  //   PERMISSION_DENIED  this user may not connect, or a process of another user listens
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Connect(const LocalAddress& address,
                                                              absl::Time deadline);

  explicit LocalSocket(UniqueFd fd) : fd_(static_cast<UniqueFd&&>(fd)) {}

  // A message arrives whole, with duplicates of its descriptors.
  //   UNAVAILABLE         the peer is gone
  //   DEADLINE_EXCEEDED   a message of which a part was sent by then ends the connection
  //   INVALID_ARGUMENT    too many bytes or descriptors; nothing was sent
  //   RESOURCE_EXHAUSTED  too many descriptors are under way; nothing was sent
  absl::Status Send(absl::string_view bytes, absl::Span<const int> descriptors,
                    absl::Time deadline);

  //   UNAVAILABLE          the peer is gone, and all its complete messages were received
  //   DEADLINE_EXCEEDED    the part of a message that has come is kept for the next call
  //   FAILED_PRECONDITION  the peer speaks another protocol version
  //   INVALID_ARGUMENT     what comes is not a message, or is too large
  //   RESOURCE_EXHAUSTED   descriptors got lost: this process may open no more
  // After the last three the descriptors that came are closed, and later calls return the same.
  absl::StatusOr<Message> Receive(absl::Time deadline);

  // The process at the other end, as it was when it connected or began to listen.
  absl::StatusOr<PeerCredentials> Peer() const;

  // PERMISSION_DENIED unless that process runs as the user of this one. Connect has checked it; who
  // accepts a connection has to.
  absl::Status CheckPeerUser() const;

  // Pending and later calls return UNAVAILABLE, here and at the peer, which first receives what was
  // sent before. Any thread.
  void HangUp();

  int fd() const { return fd_.get(); }  // for poll: POLLRDHUP, POLLHUP when the peer is gone

 private:
  static constexpr size_t kHeaderBytes = 20;

  // Of the message that is coming.
  struct Incoming {
    std::array<unsigned char, kHeaderBytes> header;
    size_t header_bytes = 0;  // have come
    size_t body_bytes = 0;    // have come
    Message message;
  };

  absl::Status ReceiveHeader(absl::Time deadline);
  absl::Status ReceiveBody(absl::Time deadline);
  absl::StatusOr<size_t> ReceiveSome(void* to, size_t bytes, absl::Time deadline);
  absl::Status CheckVersion() const;
  absl::Status CheckCounts() const;

  const UniqueFd fd_;
  std::atomic<bool> hung_up_{false};
  Incoming incoming_;            // of the thread that receives
  absl::Status receive_status_;  // likewise
};

// Thread-compatible. Any thread may call HangUp.
class LocalListener {
 public:
  // A path becomes a socket of mode 0700, with a lock file PATH.lock beside it. The socket of a
  // dead process is replaced. A forked child that does not exec keeps the lock.
  //   ALREADY_EXISTS    a living process listens there, or another kind of file is there
  //   INVALID_ARGUMENT  a symbolic link; a name that is too long; a folder that does not exist, or
  //                     that other users may write to (unless it is sticky, like /tmp)
  static absl::StatusOr<std::unique_ptr<LocalListener>> Listen(const LocalAddress& address);

  // Removes the path, if it is still its own, and the lock file. In a forked child: nothing.
  ~LocalListener();

  // DEADLINE_EXCEEDED; UNAVAILABLE after HangUp; RESOURCE_EXHAUSTED where this process may open no
  // more descriptors. Anybody may have connected: call CheckPeerUser before anything else.
  absl::StatusOr<std::unique_ptr<LocalSocket>> Accept(absl::Time deadline);
  void HangUp();

  const LocalAddress& address() const { return address_; }

 private:
  // The socket file and its lock.
  struct File {
    std::string path;  // absolute; empty: none
    UniqueFd lock;     // held while it is listened on
    dev_t device = 0;
    ino_t inode = 0;
  };

  LocalListener(LocalAddress address, UniqueFd fd, File file);
  static absl::StatusOr<File> Bind(int fd, const LocalAddress& address);

  const LocalAddress address_;
  const UniqueFd fd_;
  const File file_;
  const pid_t owner_;
  std::atomic<bool> hung_up_{false};
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_LOCAL_SOCKET_H_

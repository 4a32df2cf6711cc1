// Messages and file descriptors between processes of one host: Unix stream sockets.
#ifndef OPTSHARD_COMMON_LINK_LOCAL_SOCKET_H_
#define OPTSHARD_COMMON_LINK_LOCAL_SOCKET_H_

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/link/unique_fd.h"

namespace optshard {

// A path of the file system, or "@NAME" for Linux's abstract names (which end with their process
// and have no permissions: check the peer's credentials).
using LocalAddress = std::string;

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

// One end of a connection. Deadlines are in the time of Clock::Monotonic(). Not more than one
// thread sends and one receives at a time; HangUp is for any.
class LocalSocket {
 public:
  struct Message {
    std::string bytes;
    std::vector<UniqueFd> descriptors;
  };
  static constexpr size_t kMaxMessageBytes = size_t{256} << 20;
  static constexpr size_t kMaxDescriptors = 64;

  // UNAVAILABLE naming the address where nobody listens (by the deadline: it asks again until
  // then); PERMISSION_DENIED where this user may not.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Connect(const LocalAddress& address,
                                                              absl::Time deadline);

  explicit LocalSocket(UniqueFd fd) : fd_(static_cast<UniqueFd&&>(fd)) {}

  // Both ends of a message are this class: a message arrives whole, with its descriptors, which
  // stay the sender's too. UNAVAILABLE where the peer is gone, DEADLINE_EXCEEDED, INVALID_ARGUMENT
  // for what is too large.
  absl::Status Send(absl::string_view bytes, absl::Span<const int> descriptors,
                    absl::Time deadline);
  absl::StatusOr<Message> Receive(absl::Time deadline);

  // The process at the other end when it connected (or listened).
  absl::StatusOr<PeerCredentials> Peer() const;

  // Pending and later calls return UNAVAILABLE, here and at the peer. Any thread.
  void HangUp();

  int fd() const { return fd_.get(); }  // for poll: POLLRDHUP, POLLHUP when the peer is gone

 private:
  UniqueFd fd_;
};

// Thread-compatible; HangUp is for any thread.
class LocalListener {
 public:
  // A path becomes a socket of mode 0700. ALREADY_EXISTS where a living process listens there, or
  // something else stands there; INVALID_ARGUMENT for a symbolic link, a name that is too long, a
  // folder that is not there or that others may write to (unless it is sticky, as /tmp is). What a
  // dead process has left is replaced.
  static absl::StatusOr<std::unique_ptr<LocalListener>> Listen(const LocalAddress& address);

  // Removes the path, if it is still its own.
  ~LocalListener();

  // DEADLINE_EXCEEDED; UNAVAILABLE after HangUp. The peer's credentials are for the caller to
  // check.
  absl::StatusOr<std::unique_ptr<LocalSocket>> Accept(absl::Time deadline);
  void HangUp();

  const LocalAddress& address() const { return address_; }

 private:
  LocalListener(LocalAddress address, UniqueFd fd);

  const LocalAddress address_;
  UniqueFd fd_;
  UniqueFd lock_;  // of a path: held while it is listened on
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_LOCAL_SOCKET_H_

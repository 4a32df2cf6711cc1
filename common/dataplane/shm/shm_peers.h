// The other ranks of a shared-memory plane: the memory that the ranks have mapped for each other,
// and the watch for ranks whose process has ended.
#ifndef OPTSHARD_COMMON_DATAPLANE_SHM_SHM_PEERS_H_
#define OPTSHARD_COMMON_DATAPLANE_SHM_SHM_PEERS_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "common/dataplane/peer_replicas.h"
#include "common/dataplane/shm/mailbox.h"
#include "common/dataplane/shm/shm_plane.h"
#include "common/ids.h"
#include "common/link/local_socket.h"
#include "common/link/process_handle.h"
#include "common/link/segment.h"
#include "common/link/stop_event.h"

namespace optshard {

// Thread-compatible. Peers read and write the mailboxes at any time.
class ShmPeers {
 public:
  // Every rank finds the ranks below it through the rendezvous, connects to them, and exchanges
  // descriptors with each peer: of its mailbox and, if it has one, of its replica. Errors as
  // CreateShmPlane.
  static absl::StatusOr<std::unique_ptr<ShmPeers>> Connect(const ShmPlaneOptions& options);

  // Closes the connections. To the peers it looks as if this process had ended.
  ~ShmPeers();

  Rank rank() const { return rank_; }
  int world_size() const { return static_cast<int>(mailboxes_.size()); }
  // Of the plane, ascending, this one among them. Only these have mailboxes.
  const std::vector<Rank>& ranks() const { return ranks_; }
  // Whether this is a copy of the object in a forked child. The child does not inherit the memory
  // of the mailboxes, so it may only destroy the object.
  bool in_forked_child() const;
  Mailbox& mailbox(Rank rank) { return mailboxes_[rank]; }
  Mailbox& own_mailbox() { return mailboxes_[rank_]; }

  // Null where some rank of the plane has not passed its replica on.
  const PeerReplicas* replicas() const { return replicas_.has_value() ? &*replicas_ : nullptr; }

  // Starts to watch the peers; call it once. `gone` is called at most once for each peer, from a
  // thread of this object, when the peer's process has ended or has closed its connection.
  void Watch(std::function<void(Rank peer)> gone);
  // After it returns, `gone` is not called any more. Idempotent.
  void StopWatching();

 private:
  struct Peer {
    std::unique_ptr<LocalSocket> socket;
    // A forked child may keep the socket of its dead parent open, so the process is watched, too.
    absl::optional<ProcessHandle> process;
    Segment mailbox;
    std::shared_ptr<const ReplicaSegments> replica;
  };

  ShmPeers(const ShmPlaneOptions& options, StopEvent stop);

  absl::Status Meet(const ShmPlaneOptions& options);
  absl::Status AcceptHigherRanks(const ShmPlaneOptions& options, LocalListener& listener);
  absl::Status Greet(const ShmPlaneOptions& options, LocalSocket& socket);
  absl::Status ReceiveGreeting(const ShmPlaneOptions& options, std::unique_ptr<LocalSocket> socket,
                               Rank expected);
  void CollectReplicas();
  void WatchUntilStopped(const std::function<void(Rank peer)>& gone);

  const Rank rank_;
  const std::vector<Rank> ranks_;
  const pid_t process_;      // that created this object
  std::vector<Peer> peers_;  // by rank; this rank's entry has its own memory
  std::vector<Mailbox> mailboxes_;
  absl::optional<PeerReplicas> replicas_;
  const StopEvent stop_;  // ends the watch
  std::thread watcher_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_SHM_SHM_PEERS_H_

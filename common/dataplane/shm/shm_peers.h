// The other ranks of a shared-memory plane: what they have mapped for each other, and who watches
// over their lives.
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

// Thread-compatible; the mailboxes are shared with the peers.
class ShmPeers {
 public:
  // Every rank connects to all of lower rank, found through the rendezvous, and passes on its
  // descriptors: of its mailbox and, if it has any, of its replica. Errors as CreateShmPlane.
  static absl::StatusOr<std::unique_ptr<ShmPeers>> Connect(const ShmPlaneOptions& options);

  // Hangs up: to a peer it looks like this process's end.
  ~ShmPeers();

  Rank rank() const { return rank_; }
  int world_size() const { return static_cast<int>(mailboxes_.size()); }
  // A forked child has all this, too, but not the mailboxes' memory; it may only destroy it.
  bool in_forked_child() const;
  Mailbox& mailbox(Rank rank) { return mailboxes_[rank]; }
  Mailbox& own_mailbox() { return mailboxes_[rank_]; }

  // Null where not all ranks gave theirs.
  const PeerReplicas* replicas() const { return replicas_.has_value() ? &*replicas_ : nullptr; }

  // `gone` is called, once a peer, from a thread of this object, when the peer's process has ended
  // or it hung up. Call it once.
  void Watch(std::function<void(Rank peer)> gone);
  // `gone` is not called any more after this. Idempotent.
  void StopWatching();

 private:
  struct Peer {
    std::unique_ptr<LocalSocket> socket;
    // A forked child may keep the socket of its dead parent open; this tells of the process itself.
    absl::optional<ProcessHandle> process;
    Segment mailbox;
    std::shared_ptr<const ReplicaSegments> replica;
  };

  ShmPeers(Rank rank, int world_size, StopEvent stop);

  absl::Status Meet(const ShmPlaneOptions& options);
  absl::Status AcceptHigherRanks(const ShmPlaneOptions& options, LocalListener& listener);
  absl::Status Greet(const ShmPlaneOptions& options, LocalSocket& socket);
  absl::Status ReceiveGreeting(const ShmPlaneOptions& options, std::unique_ptr<LocalSocket> socket,
                               Rank expected);
  void CollectReplicas();
  void WatchUntilStopped(const std::function<void(Rank peer)>& gone);

  const Rank rank_;
  const pid_t process_;      // that it was made in
  std::vector<Peer> peers_;  // by rank; at this rank's place its own memory
  std::vector<Mailbox> mailboxes_;
  absl::optional<PeerReplicas> replicas_;
  const StopEvent stop_;  // of the watch
  std::thread watcher_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_SHM_SHM_PEERS_H_

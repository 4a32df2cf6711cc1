// The connections of one rank to all others: messages with deadlines, and errors that name the
// peer.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_MESH_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_MESH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/dataplane/gloo/gloo_plane_options.h"
#include "common/dataplane/gloo/gloo_wire.h"
#include "common/dataplane/gloo/small_messages.h"
#include "common/dataplane/gloo/transfer.h"
#include "common/ids.h"
#include "common/link/unique_fd.h"

namespace optshard {

// Thread-safe, but messages are started and waited for by one thread at a time. Any call that
// returns why the mesh broke returns only after the connections are cut: from then on no thread
// touches the memory of any message.
//
// A peer that says that it closes has sent all that it ever will, and is missed only by who waits
// for more. That breaks the mesh of the one who waits; it then says that it closes, too, and what
// it has sent still arrives.
class GlooMesh {
 public:
  // Messages under way.
  struct Message {
    Rank peer = -1;
    std::shared_ptr<Transfer> transfer;
    // It is received, over the connection on which the peer says that it closes: not after that.
    bool precedes_goodbye = false;
  };
  using Messages = std::vector<Message>;

  // Of the last short message to each peer: an encoded DisconnectReason. No operation has this
  // slot, since none has all bits of the phase set.
  static constexpr uint64_t kReasonSlot = ~uint64_t{0};

  // Connects to all other ranks, and returns by the deadline of the options. Errors are those of
  // CreateGlooPlane.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> Connect(const GlooPlaneOptions& options);
  // The same over a given wire and, for short messages, given sockets by rank; without either in a
  // world of one.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> ConnectOver(std::unique_ptr<GlooWire> wire,
                                                               std::vector<UniqueFd> connections,
                                                               const GlooPlaneOptions& options);

  // Breaks the mesh, unless it is closed.
  ~GlooMesh();

  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  int world_size() const { return world_size_; }
  Rank rank() const { return rank_; }

  // OK while operations may start, else the reason why not.
  absl::Status status() ABSL_LOCKS_EXCLUDED(mutex_, cut_mutex_);

  // Starts a message and appends it to `messages`. The slot is the same on both sides. A short
  // message may stay here until this rank waits for any message.
  absl::Status Send(Rank peer, uint64_t slot, const void* data, size_t bytes, Messages* messages)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Receive(Rank peer, uint64_t slot, void* data, size_t bytes, Messages* messages)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits for all of them. An error has broken the mesh. `what` names the operation in it.
  absl::Status Wait(Messages* messages, absl::Time deadline, absl::FunctionRef<std::string()> what)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes pending and later calls return `reason`, and returns once the connections are cut. The
  // first reason stays. Any thread.
  void Break(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);

  // Tells all peers that this rank closes, waits until they do, and ends the connections. A peer
  // that disconnects for another reason has broken the mesh; so has one that closes because it
  // waited for a rank that had.
  absl::Status Close(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  GlooMesh(const GlooPlaneOptions& options, std::unique_ptr<GlooWire> wire,
           std::shared_ptr<SmallMessages> small);

  absl::Status StartWatching();
  void WatchConnections();
  bool HasSeenClosed(Rank peer) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Until all have closed, the deadline, or the mesh breaks; that is not OK where one has closed
  // because it waited for a rank that had.
  absl::Status AwaitGoodbyes(absl::Time deadline, absl::FunctionRef<std::string()> what)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // False: the mesh has broken.
  bool LookAtConnections() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndWait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellPeersWhy(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cut_mutex_);
  absl::Status LostConnection(Rank peer, absl::string_view what, absl::string_view why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void StopWatching() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Start(Rank peer, Messages* messages,
                     absl::FunctionRef<absl::StatusOr<std::unique_ptr<Transfer>>()> start)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Why the mesh broke, once the connections are cut; OK while it has not. Callers learn of a
  // failure from here only, because they free their memory when they do.
  absl::Status Failure() ABSL_LOCKS_EXCLUDED(mutex_, cut_mutex_);
  absl::Status BrokenBecause(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_, cut_mutex_);
  void Cut(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(cut_mutex_);
  Transfer::Outcome WaitFor(const Message& message, absl::Time deadline, std::string* why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status TimedOut(const Messages& messages, size_t first_late, const std::string& what)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Rank rank_;
  const int world_size_;
  const std::unique_ptr<GlooWire> wire_;        // null in a world of one
  const std::shared_ptr<SmallMessages> small_;  // null in a world of one

  mutable absl::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_watching_ ABSL_GUARDED_BY(mutex_) = false;
  // The message that is waited for, and as what the watcher ended that wait: kTimedOut at its
  // deadline, kBroken where the peer has closed. Gloo's own time-outs are not used: they close all
  // connections before the peers can be told why.
  const Message* waited_for_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Time wait_deadline_ ABSL_GUARDED_BY(mutex_);
  absl::optional<Transfer::Outcome> ended_as_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> has_closed_ ABSL_GUARDED_BY(mutex_);  // by rank, as the watcher has seen
  // The transfers under way, which Break aborts.
  std::unordered_set<std::shared_ptr<Transfer>> pending_ ABSL_GUARDED_BY(mutex_);

  absl::Mutex cut_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  bool disconnected_ ABSL_GUARDED_BY(cut_mutex_) = false;

  // One receive a peer for its disconnect reason, and one through Gloo that no message ever
  // answers: Gloo tells somebody that an idle connection broke only where something is under way.
  // The watcher's until it stops, then Close's.
  Messages disconnects_;
  Messages sentinels_;
  std::vector<bool> has_said_why_;  // by rank: its reason has been received
  // By rank, encoded. Read only where the reason has been received, or will not come any more.
  std::vector<uint64_t> received_reasons_;
  std::vector<char> never_received_;

  std::thread watcher_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_MESH_H_

// The connections of one rank to all others, and what becomes of them: messages that are waited for
// with a deadline and errors that name the peer.
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
#include "common/dataplane/gloo/gloo_plane_options.h"
#include "common/dataplane/gloo/gloo_wire.h"
#include "common/ids.h"

namespace optshard {

// Thread-safe, but messages are started and waited for by one thread at a time. Any call that
// returns why the mesh broke returns only after the connections are cut: from then on no thread
// touches the memory of any message.
class GlooMesh {
 public:
  // Messages under way.
  struct Message {
    Rank peer = -1;
    std::shared_ptr<GlooTransfer> transfer;
  };
  using Messages = std::vector<Message>;

  // Connects to all other ranks; errors as CreateGlooPlane's.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> Connect(const GlooPlaneOptions& options);
  // The same over a given wire; null in a world of one.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> ConnectOver(std::unique_ptr<GlooWire> wire,
                                                               const GlooPlaneOptions& options);

  // Breaks the mesh, if it is not closed.
  ~GlooMesh();

  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  int world_size() const { return world_size_; }
  Rank rank() const { return rank_; }

  // OK while operations may start; then why not.
  absl::Status status() ABSL_LOCKS_EXCLUDED(mutex_, cut_mutex_);

  // Starts a message and appends it to `messages`. The slot is the same on both sides.
  absl::Status Send(Rank peer, uint64_t slot, const void* data, size_t bytes, Messages* messages)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Receive(Rank peer, uint64_t slot, void* data, size_t bytes, Messages* messages)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits for all of them. An error has broken the mesh. `what` names the operation in it.
  absl::Status Wait(Messages* messages, absl::Time deadline, absl::FunctionRef<std::string()> what)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Pending and later calls return `reason`; the connections are cut when it returns. The first
  // reason stays. Any thread.
  void Break(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);

  // Says farewell to all peers, waits for theirs, and closes the connections.
  absl::Status Close(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  GlooMesh(const GlooPlaneOptions& options, std::unique_ptr<GlooWire> wire);

  absl::Status ConnectAll(const GlooPlaneOptions& options);
  absl::Status ReceiveFarewells();
  void WatchConnections();
  void SayWhy(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cut_mutex_);
  absl::Status LostConnection(Rank peer, absl::string_view what, absl::string_view why) const;
  void StopWatching() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Add(Rank peer, absl::StatusOr<std::unique_ptr<GlooTransfer>> started,
                   Messages* messages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why the mesh broke, once the connections are cut; OK while it has not. Callers learn of a
  // failure from here only, because they free their memory when they do.
  absl::Status Failure() ABSL_LOCKS_EXCLUDED(mutex_, cut_mutex_);
  absl::Status BrokenBecause(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_, cut_mutex_);
  void Cut(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(cut_mutex_);
  GlooTransfer::Outcome WaitFor(GlooTransfer& transfer, absl::Time deadline, std::string* why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status TimedOut(const Messages& messages, size_t first_late, const std::string& what)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Rank rank_;
  const int world_size_;
  const std::unique_ptr<GlooWire> wire_;  // null in a world of one

  mutable absl::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_watching_ ABSL_GUARDED_BY(mutex_) = false;
  // What is waited for, and whether the watcher ended that because of the deadline. Gloo's own
  // time-outs close all connections before one can say why.
  GlooTransfer* waited_for_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Time wait_deadline_ ABSL_GUARDED_BY(mutex_);
  bool timed_out_ ABSL_GUARDED_BY(mutex_) = false;
  // What Break has to wake.
  std::unordered_set<std::shared_ptr<GlooTransfer>> pending_ ABSL_GUARDED_BY(mutex_);

  absl::Mutex cut_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  bool disconnected_ ABSL_GUARDED_BY(cut_mutex_) = false;

  // A peer's last message: it closes, or it gives up because another rank is lost or late. That
  // rank, and not the peer, is then to blame for the connection that breaks next. It comes if the
  // connection is free for it.
  struct Farewell {
    enum Kind : int32_t { kNone = 0, kClosing = 1, kLost = 2, kLate = 3 };
    Kind kind = kNone;
    Rank about = -1;
  };
  // One receive a peer: an idle connection, too, thus has somebody to tell that it broke. The
  // watcher's until it stops, then Close's.
  Messages farewells_;
  // By rank. Read only after a connection broke: Gloo's thread writes them before it says so.
  std::vector<Farewell> received_farewells_;
  const Farewell closing_farewell_ = {Farewell::kClosing, -1};
  Farewell giving_up_farewell_ ABSL_GUARDED_BY(cut_mutex_);

  std::thread watcher_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_MESH_H_

// One rank's connection to all others over NCCL: the communicator, the stream that its operations
// are enqueued on, the thread that watches both, and how it breaks.
//
// The thread is detached, because NCCL's abort can hang, and nothing may hang with it. It keeps the
// link alive. Whoever needs the communicator to be gone waits for the thread with a limit, and
// then leaves it: such a thread, its communicator and its device memory are never freed.
#ifndef OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_LINK_H_
#define OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_LINK_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/dataplane/data_plane.h"
#include "common/dataplane/nccl/nccl_api.h"
#include "common/dataplane/nccl/nccl_plane_options.h"
#include "common/device_api.h"

namespace optshard {

// An operation that is on the stream. Immutable but for the event, which the device reaches, and
// what the link says of it.
struct NcclOperation {
  std::string name;             // for errors
  std::vector<Rank> waits_for;  // without which it cannot complete here
  absl::Time started;
  std::unique_ptr<DeviceEvent> complete;
  // With the link's mutex: it was complete before the link broke. Afterwards an operation that was
  // aborted is complete, too.
  bool is_done = false;
};

// Calls come from one thread at a time, but for Break and status, which any thread may call.
class NcclLink : public std::enable_shared_from_this<NcclLink> {
 public:
  // The ranks tell each other over `host` what they have, and connect. `host` is the caller's, and
  // is used until Leave. Errors as NcclPlane::Create.
  static absl::StatusOr<std::shared_ptr<NcclLink>> Connect(const NcclPlaneOptions& options,
                                                           DataPlane* host);

  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  DeviceApi& device() { return *device_; }
  void* window() { return window_.get(); }  // reduce_window_bytes of device memory

  // OK while operations may start, else why not.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Enqueues an operation on the stream, behind all that is on the caller's stream now, without
  // waiting for the device. `enqueue` calls Group, and uses the stream that it is given.
  // An error has broken the link; others may have all they need.
  absl::StatusOr<std::shared_ptr<const NcclOperation>> Enqueue(
      std::string name, std::vector<Rank> waits_for, void* callers_stream,
      absl::FunctionRef<absl::Status(const NcclOperation& operation, void* stream)> enqueue)
      ABSL_LOCKS_EXCLUDED(mutex_, calls_mutex_);

  // Within Enqueue: makes the calls of the communicator as one launch. Returns when it is on the
  // stream: at once, but for the first launches, which connect to their peers.
  absl::Status Group(const NcclOperation& operation,
                     absl::FunctionRef<absl::Status(NcclCommunicator& communicator)> calls)
      ABSL_LOCKS_EXCLUDED(mutex_, calls_mutex_);

  // Makes later work on the stream wait for the operation.
  absl::Status OrderAfter(void* stream, const NcclOperation& operation) ABSL_LOCKS_EXCLUDED(mutex_);

  // Blocks until the device has done the operation; OK also where the link has broken since. At the
  // deadline the link breaks with
  // PeersTimedOut, which names whom the oldest incomplete operation waited for: later ones wait for
  // that one. An error is returned once NCCL has let go of the device, or after `abort_grace`.
  absl::Status Wait(const NcclOperation& operation, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes pending and later calls return `reason`, and begins to abort the communicator. The first
  // reason stays, also that the link is closed. Does not block on NCCL. Any thread.
  void Break(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_, host_mutex_);

  // Breaks the link, and returns the first reason once nothing of the stream's work is left that
  // could touch the callers' memory, or after `abort_grace`. A link that is closed stays so.
  absl::Status Fail(const absl::Status& failure) ABSL_LOCKS_EXCLUDED(mutex_, host_mutex_);

  // Waits for all operations, then until all ranks have closed, then ends the communicator. Closes
  // `host`.
  absl::Status Close(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  // Breaks the link unless it is closed. After it returns, `host` is not used any more.
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_, host_mutex_);

 private:
  NcclLink(const NcclPlaneOptions& options, DataPlane* host);

  absl::Status AllocateResources(const NcclPlaneOptions& options);
  absl::Status Agree(const NcclPlaneOptions& options, const absl::Status& resources);
  absl::Status ConnectCommunicator(const NcclPlaneOptions& options);
  absl::Status Call(absl::FunctionRef<absl::Status(NcclCommunicator& communicator)> call)
      ABSL_LOCKS_EXCLUDED(mutex_, calls_mutex_);
  absl::Status AwaitReady(absl::Time deadline, const std::vector<Rank>& waits_for,
                          absl::string_view what) ABSL_LOCKS_EXCLUDED(mutex_, calls_mutex_);
  std::shared_ptr<const NcclOperation> OldestIncomplete() ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsDone(const NcclOperation& operation) const ABSL_LOCKS_EXCLUDED(mutex_);
  void DropComplete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void WatchUntilItEnds() ABSL_LOCKS_EXCLUDED(mutex_, calls_mutex_, host_mutex_);
  bool LookAround() ABSL_LOCKS_EXCLUDED(mutex_, calls_mutex_, host_mutex_);
  absl::Status HostStatus() ABSL_LOCKS_EXCLUDED(mutex_, host_mutex_);
  absl::Status WhomTheHostPlaneMisses(const absl::Status& failure)
      ABSL_LOCKS_EXCLUDED(mutex_, host_mutex_);
  bool IsOver() const ABSL_LOCKS_EXCLUDED(mutex_);

  bool AwaitEnded(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  const Rank rank_;
  std::vector<Rank> others_;
  const absl::Duration operation_timeout_, watch_interval_, naming_time_, abort_grace_;
  std::shared_ptr<NcclApi> nccl_;
  std::shared_ptr<DeviceApi> device_;
  // Freed in the reverse order: first the stream, whose work uses the window.
  std::shared_ptr<void> window_;
  std::shared_ptr<void> stream_;
  std::unique_ptr<DeviceEvent> callers_point_;  // recorded anew by each operation

  // Held where another thread than the caller's uses the host plane, none of whose calls that it
  // makes blocks.
  absl::Mutex host_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  DataPlane* host_ ABSL_GUARDED_BY(host_mutex_);

  // Held in each call of the communicator but Destroy and Abort, after which there are no others.
  absl::Mutex calls_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::unique_ptr<NcclCommunicator> communicator_ ABSL_GUARDED_BY(calls_mutex_);

  mutable absl::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  absl::Time broken_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  // peers may leave
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = true;  // there is no communicator, or none any more
  std::deque<std::shared_ptr<NcclOperation>> pending_ ABSL_GUARDED_BY(mutex_);  // as on the stream
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_LINK_H_

// The data plane between GPUs, over NCCL. docs/dataplane.md describes it.
//
// It is two planes in one. Operations on the device's memory (ExecutionContext::device is the
// device's name) are enqueued on a stream of the plane's own, behind what is on the caller's
// stream, and never wait for the host: a ticket is ordered on the caller's stream, or waited for by
// the host with a deadline. Operations on memory of the host go to the host plane, which also knows
// whose process has ended; so a lost rank is named though NCCL cannot name it.
#ifndef OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_PLANE_H_
#define OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_PLANE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/dataplane/data_plane.h"
#include "common/dataplane/nccl/nccl_link.h"
#include "common/dataplane/nccl/nccl_plane_options.h"

namespace optshard {

// As every DataPlane, and beyond that:
//  - A ticket of the device's memory that is ordered on a stream and not waited for fails by
//    breaking the plane, within `operation_timeout`: streams then go on, with results that have no
//    meaning. The next call, or status(), says so.
//  - The Wait of an operation that was complete when the plane broke is OK.
//  - After an error NCCL is aborted by a thread that nobody waits for longer than `abort_grace`.
//    Where NCCL does not let go in that time, the device may still write to memory that was given
//    to the plane; the thread and the communicator then stay for ever.
class NcclPlane final : public DataPlane {
 public:
  // Connects to all other ranks. `host` is a plane of the same ranks; nothing was started on it.
  // The communicator's unique id goes through the rendezvous.
  //   INVALID_ARGUMENT      rank or reduce_window_bytes; RanksDisagree about an option or NCCL's
  //                         version; more ranks than a deterministic plane may have
  //   FAILED_PRECONDITION   a rank has no driver, no device or no NCCL, or not enough memory on the
  //                         device, or two ranks have one GPU; all ranks get it, with the ranks'
  //                         names
  //   UNAVAILABLE           PeerLost: a rank is gone again
  //   DEADLINE_EXCEEDED     PeersTimedOut: ranks that did not come
  // and what the host plane and the rendezvous return.
  static absl::StatusOr<std::unique_ptr<DataPlane>> Create(const NcclPlaneOptions& options,
                                                           std::unique_ptr<DataPlane> host);

  ~NcclPlane() override;

  Rank rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(all_.size()); }

  absl::StatusOr<std::unique_ptr<Ticket>> Reduce(const StepTag& tag,
                                                 const ExecutionContext& context,
                                                 const Reduction& reduction, DType dtype,
                                                 const void* contribution, void* result,
                                                 int64_t elements) override;
  absl::StatusOr<std::unique_ptr<Ticket>> Publish(const StepTag& tag,
                                                  const ExecutionContext& context, Rank owner,
                                                  absl::Span<const Rank> members, void* data,
                                                  size_t bytes) override;
  absl::StatusOr<std::unique_ptr<Ticket>> AllGather(const StepTag& tag,
                                                    const ExecutionContext& context,
                                                    const void* contribution, void* gathered,
                                                    size_t bytes_per_rank) override;

  absl::Status status() override;
  void Abort(const absl::Status& reason) override;
  absl::Status Close(absl::Time deadline) override;

 private:
  NcclPlane(const NcclPlaneOptions& options, std::unique_ptr<DataPlane> host,
            std::shared_ptr<NcclLink> link);

  absl::Status MayStart(const absl::Status& valid, const ExecutionContext& context);
  absl::StatusOr<std::unique_ptr<Ticket>> OfHost(absl::StatusOr<std::unique_ptr<Ticket>> started);
  absl::Status SumInPlanOrder(const NcclOperation& operation, const Reduction& reduction,
                              DType dtype, const char* contribution, char* result, int64_t elements,
                              void* stream);
  absl::Status SumAsNcclDoes(const NcclOperation& operation, const Reduction& reduction,
                             DType dtype, const char* contribution, char* result, int64_t elements,
                             void* stream);

  const Rank rank_;
  std::vector<Rank> all_;
  const bool deterministic_;
  const size_t window_bytes_;
  const std::unique_ptr<DataPlane> host_;
  const std::shared_ptr<NcclLink> link_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_PLANE_H_

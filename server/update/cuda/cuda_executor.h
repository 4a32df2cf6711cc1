// Updates on a GPU.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_CUDA_EXECUTOR_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_CUDA_EXECUTOR_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/cuda/cuda_event.h"
#include "common/cuda/cuda_memory.h"
#include "server/update/cuda/cublas_products.h"
#include "server/update/cuda/formula_kernels.h"
#include "server/update/cuda/launch_sequence.h"
#include "server/update/cuda/launch_table.h"
#include "server/update/cuda/sequenced_rule.h"
#include "server/update/cuda/staging_ring.h"
#include "server/update/executor.h"

namespace optshard {

// All tasks of a Start are one launch, or one for each variant, type and pass among them. Of rules
// that need whole parameters (LAMB, Adafactor, Muon) they are a sequence of launches for each batch
// of parameters, which share a workspace. The bits are the CPU's, but for Muon's products of
// matrices. Links in no kernels: whoever uses it also needs :kernels.
class CudaExecutor final : public Executor {
 public:
  // On the device of that index. What UseDevice says (common/cuda/cuda_status.h), or
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(int device);

  // Arrays lie in the device's memory; `context` is of that device, on the stream on which they may
  // be read and written. Waits for nothing on the device, but that earlier updates have ended where
  // one needs more memory than they did, or StagingRing::kMostPlaces are under way. What of the
  // tasks lies on the host is not read once this has returned. CheckRuns' errors; UNIMPLEMENTED for
  // tasks with replicas; INVALID_ARGUMENT for a context of another device;
  // RESOURCE_EXHAUSTED; DEADLINE_EXCEEDED. After any other error some of the tasks may be under
  // way. A ticket that was neither waited for nor ordered on a stream waits a minute at most when
  // it is destroyed.
  absl::StatusOr<std::unique_ptr<Ticket>> Start(const ExecutionContext& context,
                                                const UpdateRule& rule,
                                                absl::Span<const UpdateTask> tasks) override;

  // UNIMPLEMENTED of rules that have no kernels. Of those that multiply matrices, CublasProducts'
  // errors: it is made then, so that no step has them.
  absl::Status CheckRuns(const UpdateRule& rule) const override;

 private:
  // Tables one behind the other.
  class TableLayout {
   public:
    // Where so many bytes begin: 16-byte aligned.
    size_t Add(size_t bytes) {
      const size_t at = bytes_;
      bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
      return at;
    }
    size_t bytes() const { return bytes_; }

   private:
    static constexpr size_t kAlignment = 16;

    size_t bytes_ = 0;
  };
  // Enqueues a sequence's kernels.
  class Enqueuer;

  using KernelKey = std::tuple<const FormulaKernels*, SlotSet, DType, KernelPass>;

  CudaExecutor(int device, int multiprocessors, CudaMemory tables, StagingRing on_their_way,
               CudaEvent workspace_is_free)
      : device_(device),
        multiprocessors_(multiprocessors),
        tables_(std::move(tables)),
        on_their_way_(std::move(on_their_way)),
        workspace_is_free_(std::move(workspace_is_free)) {}

  absl::Status StartElementWise(const FormulaKernels& kernels, absl::Span<const UpdateTask> tasks,
                                cudaStream_t stream);
  absl::Status StartSequenced(const SequencedRule& rule, absl::Span<const UpdateTask> tasks,
                              cudaStream_t stream);
  // Of a table that lies at `at`.
  absl::Status Enqueue(const FormulaKernels& kernels, const LaunchTable& table, const void* at,
                       cudaStream_t stream);
  absl::Status MakeRoom(int64_t workspace_bytes);
  absl::Status PrepareProducts(const std::vector<LaunchSequence>& sequences);
  absl::StatusOr<int> BlocksOf(const FormulaKernels& kernels, const LaunchTable& table);

  const int device_;
  const int multiprocessors_;
  const CudaMemory tables_;  // CodeTables
  StagingRing on_their_way_;
  CudaMemory workspace_;
  CudaEvent workspace_is_free_;
  mutable std::unique_ptr<CublasProducts> products_;  // since CheckRuns was asked for such a rule
  std::map<KernelKey, int> blocks_;  // that run at the same time on the whole device
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_CUDA_EXECUTOR_H_

// What a rule with norms between two formulas does on a device, as launches in order.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_NORM_SCALED_LAUNCHES_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_NORM_SCALED_LAUNCHES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/update/cuda/launch_table.h"
#include "server/update/cuda/norm_scaled_rule.h"
#include "server/update/cuda/squares_table.h"
#include "server/update/cuda/step_size_body.h"
#include "server/update/executor.h"

namespace optshard {

// First the kernels of directions(), then the sums of squares(), and then for each of steps() its
// step sizes and its kernel. Immutable.
class NormScaledLaunches {
 public:
  // The second formula's, with the step sizes behind its table.
  class Step {
   public:
    explicit Step(LaunchTable table) : table_(std::move(table)) {}

    const LaunchTable& table() const { return table_; }
    // What is copied to the device, 16-byte aligned there. `at`: where that will be.
    size_t bytes() const;
    void CopyTo(void* to, void* at) const;
    // For a copy that lies at `at`; `sums`: those of squares().
    StepSizeArguments SizesAt(const void* at, const SumOfSquaresOnDevice* sums) const;

   private:
    friend class NormScaledLaunches;

    LaunchTable table_;
    int minus_step_size_ = 0;
    std::vector<StepSize> sizes_;  // by set of coefficients, without `to`
  };

  // The tasks in order, in pieces whose directions take at most so many bytes, or that are one
  // task.
  static std::vector<absl::Span<const UpdateTask>> Batches(absl::Span<const UpdateTask> tasks,
                                                           int64_t most_bytes);

  NormScaledLaunches(NormScaledLaunches&&) = default;
  NormScaledLaunches& operator=(NormScaledLaunches&&) = default;

  // How much memory the directions of the tasks need.
  static int64_t DirectionBytes(absl::Span<const UpdateTask> tasks);

  // `directions`: so much of the device's memory, 64-byte aligned, which the launches write to. The
  // tasks and what they point to stay until their tables are copied. Errors of LaunchTable::For.
  static absl::StatusOr<NormScaledLaunches> For(const NormScaledRule& rule,
                                                absl::Span<const UpdateTask> tasks,
                                                void* directions);

  const std::vector<LaunchTable>& directions() const { return directions_; }
  const SquaresTable& squares() const { return squares_; }
  const std::vector<Step>& steps() const { return steps_; }

 private:
  NormScaledLaunches() = default;

  std::deque<Coefficients> coefficients_;  // that the tables point to
  std::vector<LaunchTable> directions_;
  SquaresTable squares_;
  std::vector<Step> steps_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_NORM_SCALED_LAUNCHES_H_

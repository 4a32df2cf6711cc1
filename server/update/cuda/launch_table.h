// Tasks of an element-wise rule as its kernels read them.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_LAUNCH_TABLE_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_LAUNCH_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "server/update/cuda/formula_kernels.h"
#include "server/update/cuda/kernel_arguments.h"
#include "server/update/executor.h"
#include "server/update/update_rule.h"

namespace optshard {

// The tasks that one kernel updates: of one variant, in one type, by one pass. Immutable.
class LaunchTable {
 public:
  // Every task is in one of the tables. UNIMPLEMENTED of a task with replicas: a device has the
  // averaged gradient, and publishes by its data plane.
  static absl::StatusOr<std::vector<LaunchTable>> For(absl::Span<const UpdateTask> tasks);

  KernelPass pass() const { return pass_; }
  SlotSet slots() const { return slots_; }
  DType arithmetic() const { return arithmetic_; }
  int64_t chunks() const { return chunks_; }  // 0: nothing is to be done

  // What is copied to the device, 16-byte aligned there.
  size_t bytes() const { return bytes_; }
  void CopyTo(void* to) const;

  // The sets of coefficients that it copies, in order: one for tasks behind each other that share
  // it.
  absl::Span<const Coefficients* const> coefficients() const { return coefficients_; }
  // Where a coefficient of a set lies, from the beginning of the copy: a T.
  size_t CoefficientAt(size_t set, int index) const;

  // For a copy that lies at `at`; T is that of arithmetic().
  template <typename T>
  KernelArguments<T> ArgumentsAt(const void* at, const CodeTable* tables,
                                 const StepDecision* decision) const;

 private:
  LaunchTable(KernelPass pass, SlotSet slots, DType arithmetic)
      : pass_(pass), slots_(slots), arithmetic_(arithmetic) {}

  bool Takes(KernelPass pass, const UpdateTask& task) const;
  void Add(const UpdateTask& task);
  void Finish();

  KernelPass pass_;
  SlotSet slots_;
  DType arithmetic_;
  std::vector<KernelSpan> spans_;
  std::vector<int64_t> chunks_before_;
  std::vector<const Coefficients*> coefficients_;
  int64_t chunks_ = 0;
  // In the copy: spans, chunks before each, coefficients.
  size_t chunks_at_ = 0;
  size_t coefficients_at_ = 0;
  size_t bytes_ = 0;
};

// Of signed values, and of unsigned ones: what kernels read is a copy.
const CodeTable* CodeTables();

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_LAUNCH_TABLE_H_

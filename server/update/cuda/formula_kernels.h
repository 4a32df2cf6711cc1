// The kernels of each formula, by its name.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_FORMULA_KERNELS_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_FORMULA_KERNELS_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "server/update/cuda/kernel_arguments.h"

namespace optshard {

// Where a launch runs. `blocks` is at least 1, and no more than what ChunkElements makes of the
// spans.
struct KernelGrid {
  int blocks = 1;
  void* stream = nullptr;  // a cudaStream_t
};

// Of one formula in one type.
template <typename T>
struct TypedKernels {
  // Enqueues the kernel of that variant on the grid's stream. Returns a cudaError_t: 0, or why it
  // could not be launched. The variant exists, and what `arguments` points to lies in the device's
  // memory until the kernel has ended.
  int (*launch)(SlotSet slots, KernelPass pass, const KernelArguments<T>& arguments,
                const KernelGrid& grid) = nullptr;
  // How many blocks of it run at the same time on each multiprocessor of the current device; 0
  // where the device cannot run it.
  int (*blocks_per_multiprocessor)(SlotSet slots, KernelPass pass) = nullptr;
};

struct FormulaKernels {
  const char* formula = nullptr;
  TypedKernels<float> float32;
  TypedKernels<double> float64;  // of KernelPass::kPlain only
};

// Those that are linked in: for GPUs, or for the host (define_kernels-inl.h).
class FormulaKernelRegistry {
 public:
  // Null where there are none.
  static const FormulaKernels* Find(absl::string_view formula);
  // At static initialisation; returns true.
  static bool Register(const FormulaKernels& kernels);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_FORMULA_KERNELS_H_

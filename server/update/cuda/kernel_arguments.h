// What the kernels of element-wise rules read: plain data, laid out by the host.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_KERNEL_ARGUMENTS_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_KERNEL_ARGUMENTS_H_

#include <cstdint>

#include "common/host_device.h"
#include "server/update/formula_limits.h"

namespace optshard {

// How the elements of an array are kept. Codes: common/block_code.h.
enum class ArrayKind : uint8_t {
  kNone = 0,  // there is no array
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kDynamicSigned,
  kDynamicUnsigned,
  kCompandedAverage,
  kCompandedSquare,
};

struct KernelArray {
  void* values = nullptr;  // or codes
  void* scales = nullptr;  // of codes
  ArrayKind kind = ArrayKind::kNone;
};

// A SpanUpdate (server/update/update_rule.h) whose arrays lie in the device's memory.
struct KernelSpan {
  KernelArray updated;  // the parameter, or its master
  KernelArray gradient;
  KernelArray slots[kMaxSlots];  // those that exist, from the first on
  // Beside a master: the parameter, which becomes that, rounded to a value of rounded_to.
  KernelArray parameter;
  ArrayKind rounded_to = ArrayKind::kNone;
  bool keeps_parameter = false;
  // Whether every array begins where a vector of its elements may.
  bool is_aligned = false;
  int32_t coefficients = 0;  // which set
  int8_t* corrections = nullptr;
  int64_t elements = 0;
};

// Made on the device, so that a step does not wait for it on the host.
struct StepDecision {
  int32_t applies = 1;  // 0: the step is skipped, and nothing changes
};

// The values of a dynamic map and what finds the nearest one: DynamicMap's, by the same names.
struct DynamicTable {
  static constexpr int kSections = 8;

  float values[256];
  float middles[256];
  float begins[kSections];
  float scale[kSections];
  float offset[kSections];
  float limit[kSections];
  int32_t largest;
  int32_t zero;  // the code of 0
};

// What a launch's threads do is cut into units of so many threads' vectors, and a chunk is
// kUnitsPerChunk of them: the unit of work that a block takes.
constexpr int kKernelThreads = 256;
constexpr int kUnitsPerChunk = 4;

// T: what the formula computes in.
template <typename T>
struct KernelArguments {
  const KernelSpan* spans = nullptr;
  // The number of chunks before each span, ascending.
  const int64_t* chunks_before = nullptr;
  int32_t span_count = 0;
  int64_t chunks = 0;
  const T* coefficients = nullptr;         // sets of kMaxCoefficients
  const StepDecision* decision = nullptr;  // null: the step is applied
  const DynamicTable* tables = nullptr;    // of signed values, then of unsigned ones
};

// How a formula goes over memory.
enum class KernelPass : uint8_t {
  kPlain,  // every array of what the formula computes in
  kMixed,  // arrays of several types, masters
  kCoded,  // likewise, and slots in 8 bits
};

// The elements that a thread takes at a time.
template <typename T>
OPTSHARD_HOST_DEVICE constexpr int VectorElements(KernelPass pass) {
  return pass == KernelPass::kPlain ? 16 / static_cast<int>(sizeof(T)) : 8;
}

// A multiple of kCodeGrid.
template <typename T>
OPTSHARD_HOST_DEVICE constexpr int64_t ChunkElements(KernelPass pass) {
  return int64_t{kUnitsPerChunk} * kKernelThreads * VectorElements<T>(pass);
}

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_KERNEL_ARGUMENTS_H_

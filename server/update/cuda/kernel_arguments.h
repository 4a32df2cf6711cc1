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

// Of a kernel that looks at each array's kind.
constexpr ArrayKind kAnyKind = ArrayKind::kNone;

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

// What codes are made with: DynamicMap's numbers of one of the maps, and the companded averages.
struct CodeTable {
  // Among the floats of two octaves at most one section begins: `begin` is less than that by what a
  // quotient may be off, as bits; `section` is the one before.
  struct Octaves {
    int32_t begin;
    int32_t section;
  };
  struct alignas(16) Section {
    float scale;
    float offset;  // with kPlaceBase
    float limit;   // likewise
  };
  // A place plus this is between 512 and 1024, where floats are 2^-14 apart: the last 14 bits are
  // how far it is above the middle of two ranks less the doubt, and the 8 before them the rank.
  static constexpr float kPlaceDoubt = 0x1p-13f;
  static constexpr float kPlaceBase = 768.5f + kPlaceDoubt;
  static constexpr int kFractionBits = 14;
  static constexpr int32_t kQuotientDoubt = 4;  // units in the last place
  static constexpr float kSmallest = 0x1p-25f;  // has rank 0

  Section sections[8];
  Octaves octaves[16];
  float values[256];    // by rank
  float middles[256];   // x has at least rank k where x >= middles[k - 1]
  int32_t largest;      // rank
  float averages[256];  // of a companded code, as a share of the scale
};

constexpr int kCodeTables = 2;

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
  const CodeTable* tables = nullptr;       // kCodeTables
};

// How a formula goes over memory. Kernels that know the types of their arrays are faster than those
// that look at them.
enum class KernelPass : uint8_t {
  kPlain,         // every array of what the formula computes in
  kBFloat16,      // every array is bfloat16, and there is neither a master nor a correction
  kMaster,        // parameter and gradient are bfloat16, master and slots float32
  kMixed,         // any others without codes
  kCodedFloat32,  // slots are coded, the other arrays float32, and there is no master
  kCoded,         // some slots are coded, the other arrays any
};

OPTSHARD_HOST_DEVICE constexpr bool HasCodes(KernelPass pass) {
  return pass == KernelPass::kCodedFloat32 || pass == KernelPass::kCoded;
}

// The elements that a thread takes at a time: in one group, or two.
template <typename T>
OPTSHARD_HOST_DEVICE constexpr int GroupElements(KernelPass pass) {
  return pass == KernelPass::kPlain ? 16 / static_cast<int>(sizeof(T)) : 4;
}
OPTSHARD_HOST_DEVICE constexpr int GroupsOf(KernelPass pass) {
  return pass == KernelPass::kPlain ? 1 : 2;
}

// A multiple of kCodeGrid.
template <typename T>
OPTSHARD_HOST_DEVICE constexpr int64_t ChunkElements(KernelPass pass) {
  return int64_t{kUnitsPerChunk} * kKernelThreads * GroupsOf(pass) * GroupElements<T>(pass);
}

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_KERNEL_ARGUMENTS_H_

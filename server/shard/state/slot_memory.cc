#include "server/shard/state/slot_memory.h"

#include <algorithm>
#include <utility>

#include "common/block_recode.h"
#include "common/default_floating_point.h"
#include "common/half.h"
#include "common/memory_layout.h"
#include "common/stagger.h"
#include "server/update/state_support.h"

namespace optshard {
namespace {

constexpr int64_t kBetweenSlots = StaggerBytes(1);
// Shorter arrays are not streams, and many small parameters would need as much again.
constexpr int64_t kBytesWorthStaggering = 4096;

int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

// With what keeps an array apart from the next one.
int64_t Staggered(int64_t bytes) {
  return bytes < kBytesWorthStaggering ? bytes : bytes + kBetweenSlots;
}

// A reader copies while the step's threads may be writing, and throws the copy away when the
// sequence number says that they did: a data race on purpose, so that a step never waits for a
// reader. The loads are relaxed atomics (a plain load each on x86-64), which makes the copy defined
// on the reader's side; the writers' plain and vector stores are what tsan would report.
template <typename T, typename To>
__attribute__((no_sanitize("thread"))) void RacyCopy(const T* from, int64_t elements, To* to) {
  for (int64_t i = 0; i < elements; ++i) {
    T value;
    __atomic_load(from + i, &value, __ATOMIC_RELAXED);
    to[i] = value;
  }
}

__attribute__((no_sanitize("thread"))) void RacyCopyOfBFloat16(const uint16_t* from,
                                                               int64_t elements, double* to) {
  for (int64_t i = 0; i < elements; ++i) {
    to[i] = FromBFloat16(__atomic_load_n(from + i, __ATOMIC_RELAXED));
  }
}

// Block by block: a code means something only with its block's scale.
void RacyDecode(const CodedArray& array, int64_t elements, int64_t first, int64_t count,
                double* to) {
  const DefaultFloatingPoint default_mode;
  const int64_t block = BlockElements(array.code);
  for (int64_t begin = first / block * block; begin < first + count; begin += block) {
    const int64_t length = std::min(block, elements - begin);
    uint8_t codes[kCodeGrid];
    alignas(float) uint8_t scale[sizeof(float)];
    const CodedArray from = array.From(begin);
    RacyCopy(from.codes, CodeBytes(array.code, length), codes);
    RacyCopy(static_cast<const uint8_t*>(from.scales), ScaleBytes(array.code, length), scale);
    float values[kCodeGrid];
    Decode({array.code, codes, scale}, length, values);
    const int64_t skipped = std::max<int64_t>(first - begin, 0);
    const int64_t end = std::min(length, first + count - begin);
    std::copy(values + skipped, values + end, to + (begin + skipped - first));
  }
}

}  // namespace

int64_t SlotType::Bytes(int64_t elements) const {
  if (code.has_value()) return CodeBytes(*code, elements) + ScaleBytes(*code, elements);
  return elements * static_cast<int64_t>(SizeOf(dtype));
}

SlotType SlotTypeOf(const StateOptions& options, const ParameterSpec& parameter, const Slot& slot) {
  const StateFormat format = options.SlotFormat(parameter.dtype, parameter.elements());
  SlotType type;
  type.dtype = DTypeOf(format);
  if (IsCoded(format)) type.code = BlockCodeOf(format, slot.eight_bit);
  return type;
}

int64_t StateBytes(const StateOptions& options, const ParameterSpec& parameter,
                   const std::vector<Slot>& slots, int64_t elements) {
  int64_t bytes = 0;
  for (const Slot& slot : slots) {
    bytes += SlotTypeOf(options, parameter, slot).Bytes(slot.ValuesFor(parameter.shape, elements));
  }
  if (options.HasMaster(parameter.dtype)) bytes += SlotType().Bytes(elements);
  if (options.HasCorrection(parameter.dtype)) bytes += elements;
  return bytes;
}

int64_t ArrayBytes(int64_t elements, DType dtype) {
  return AlignedElements(elements, dtype) * static_cast<int64_t>(SizeOf(dtype));
}

int64_t SlotArrays::Bytes(int64_t elements, const SlotType& type) {
  return Staggered(type.code.has_value() ? Aligned(CodeBytes(*type.code, elements)) +
                                               Aligned(ScaleBytes(*type.code, elements))
                                         : ArrayBytes(elements, type.dtype));
}

int64_t SlotArrays::CorrectionBytes(int64_t elements) { return Staggered(Aligned(elements)); }

int8_t* SlotArrays::TakeCorrections(int64_t elements) {
  return reinterpret_cast<int8_t*>(std::exchange(next_, next_ + CorrectionBytes(elements)));
}

SlotArray SlotArrays::Take(int64_t elements, const SlotType& type) {
  uint8_t* const array = std::exchange(next_, next_ + Bytes(elements, type));
  if (!type.code.has_value()) return Buffer(array, type.dtype);
  CodedArray coded;
  coded.code = *type.code;
  coded.codes = array;
  coded.scales = array + Aligned(CodeBytes(coded.code, elements));
  return coded;
}

void FillSlot(const SlotArray& array, int64_t elements, double value) {
  if (array.is_coded()) {
    const DefaultFloatingPoint default_mode;
    const std::vector<float> block(kCodeGrid, static_cast<float>(value));
    for (int64_t begin = 0; begin < elements; begin += kCodeGrid) {
      Encode(block.data(), std::min(kCodeGrid, elements - begin), array.coded().From(begin));
    }
  } else if (array.dtype() == DType::kFloat64) {
    std::fill_n(array.As<double>(), elements, value);
  } else if (array.dtype() == DType::kBFloat16) {
    std::fill_n(array.As<uint16_t>(), elements, ToBFloat16(static_cast<float>(value)));
  } else {
    std::fill_n(array.As<float>(), elements, static_cast<float>(value));
  }
}

void WriteSlot(const SlotArray& array, int64_t first, int64_t count, const double* from) {
  const Buffer to = array.plain().From(first);
  if (array.is_coded()) {
    const DefaultFloatingPoint default_mode;
    float values[kCodeGrid];
    for (int64_t begin = 0; begin < count; begin += kCodeGrid) {
      const int64_t length = std::min(kCodeGrid, count - begin);
      std::copy_n(from + begin, length, values);
      Recode(values, length, array.coded().From(first + begin));
    }
  } else if (to.dtype() == DType::kFloat64) {
    std::copy_n(from, count, to.As<double>());
  } else if (to.dtype() == DType::kBFloat16) {
    std::transform(from, from + count, to.As<uint16_t>(),
                   [](double value) { return ToBFloat16(static_cast<float>(value)); });
  } else {
    std::copy_n(from, count, to.As<float>());
  }
}

void ReadSlotRacily(const SlotArray& array, int64_t elements, int64_t first, int64_t count,
                    double* to) {
  if (array.is_coded()) {
    RacyDecode(array.coded(), elements, first, count, to);
    return;
  }
  const ConstBuffer from = array.plain().From(first);
  if (from.dtype() == DType::kFloat64) {
    RacyCopy(from.As<double>(), count, to);
  } else if (from.dtype() == DType::kBFloat16) {
    RacyCopyOfBFloat16(from.As<uint16_t>(), count, to);
  } else {
    RacyCopy(from.As<float>(), count, to);
  }
}

void ReadCorrectionsRacily(const int8_t* from, int64_t count, double* to) {
  RacyCopy(from, count, to);
}

}  // namespace optshard

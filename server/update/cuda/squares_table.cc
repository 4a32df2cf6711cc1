#include "server/update/cuda/squares_table.h"

#include <cstring>

#include "common/dtype.h"
#include "common/simd/norms.h"
#include "server/update/cuda/kernel_array.h"

namespace optshard {
namespace {

constexpr size_t kAlignment = 16;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void SquaresTable::Add(ConstBuffer values, int64_t elements, const int8_t* corrections) {
  SquaresSpan span;
  span.values = ArrayOf(values);
  span.corrections = corrections;
  span.elements = elements;
  span.blocks_before = blocks_;
  // Four elements of float64 are one pack, too.
  span.is_aligned = IsAligned(span.values, kSumsOfThread, kSumsOfThread * sizeof(double)) &&
                    IsAligned(corrections, sizeof(int8_t), kSumsOfThread);
  blocks_ += (elements + kNormBlock - 1) / kNormBlock;
  spans_.push_back(span);
}

void SquaresTable::AddParameter(const SpanUpdate& span) {
  if (span.master) {
    Add(span.master, span.elements);
  } else {
    Add(span.parameter, span.elements, span.correction);
  }
}

size_t SquaresTable::bytes_to_copy() const { return Aligned(spans_.size() * sizeof(SquaresSpan)); }

size_t SquaresTable::bytes() const {
  const size_t sums = static_cast<size_t>(blocks_) + spans_.size();
  return bytes_to_copy() + sums * sizeof(SumOfSquaresOnDevice);
}

void SquaresTable::CopyTo(void* to) const {
  std::memcpy(to, spans_.data(), spans_.size() * sizeof(SquaresSpan));
}

SquaresArguments SquaresTable::ArgumentsAt(void* at) const {
  SquaresArguments arguments;
  arguments.spans = static_cast<const SquaresSpan*>(at);
  arguments.span_count = static_cast<int32_t>(spans_.size());
  arguments.blocks = blocks_;
  auto* const sums =
      reinterpret_cast<SumOfSquaresOnDevice*>(static_cast<char*>(at) + bytes_to_copy());
  arguments.of_blocks = sums;
  arguments.of_spans = sums + blocks_;
  return arguments;
}

}  // namespace optshard

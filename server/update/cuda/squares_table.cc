#include "server/update/cuda/squares_table.h"

#include <cstring>

#include "common/dtype.h"
#include "common/simd/norms.h"
#include "server/update/cuda/kernel_array.h"

namespace optshard {
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

size_t SquaresTable::bytes_of_sums() const {
  return (static_cast<size_t>(blocks_) + spans_.size()) * sizeof(SumOfSquaresOnDevice);
}

void SquaresTable::CopyTo(void* to) const {
  if (!spans_.empty()) std::memcpy(to, spans_.data(), bytes());
}

SquaresArguments SquaresTable::ArgumentsAt(const void* at, void* sums) const {
  SquaresArguments arguments;
  arguments.spans = static_cast<const SquaresSpan*>(at);
  arguments.span_count = static_cast<int32_t>(spans_.size());
  arguments.blocks = blocks_;
  arguments.of_blocks = static_cast<SumOfSquaresOnDevice*>(sums);
  arguments.of_spans = arguments.of_blocks + blocks_;
  return arguments;
}

}  // namespace optshard

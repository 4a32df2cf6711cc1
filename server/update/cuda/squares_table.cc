#include "server/update/cuda/squares_table.h"

#include <cstring>

#include "server/update/cuda/kernel_array.h"
#include "server/update/cuda/squares_body.h"

namespace optshard {

void SquaresTable::Add(const Array& array) {
  SquaresSpan span;
  span.values = ArrayOf(array.values);
  span.corrections = array.corrections;
  span.elements = array.elements;
  span.period = array.period == 0 ? array.elements : array.period;
  span.blocks_before = blocks_;
  // Four elements of float64 are one pack, too.
  const bool periods_are = span.period >= span.elements || span.period % kSumsOfThread == 0;
  span.is_aligned = periods_are &&
                    IsAligned(span.values, kSumsOfThread, kSumsOfThread * sizeof(double)) &&
                    IsAligned(array.corrections, sizeof(int8_t), kSumsOfThread);
  blocks_ += kernels::BlocksOfSpan(span);
  spans_.push_back(span);
}

void SquaresTable::AddParameter(const SpanUpdate& span, int64_t period) {
  if (span.master) {
    Add({span.master, span.elements, period});
  } else {
    Add({span.parameter, span.elements, period, span.correction});
  }
}

size_t SquaresTable::bytes_of_blocks() const {
  return static_cast<size_t>(blocks_) * sizeof(SumOfSquaresOnDevice);
}

size_t SquaresTable::bytes_of_sums() const {
  return bytes_of_blocks() + spans_.size() * sizeof(SumOfSquaresOnDevice);
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
  arguments.of_spans = SpansIn(sums);
  return arguments;
}

}  // namespace optshard

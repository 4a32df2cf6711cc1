#include "tests/server/update/cuda/squares_jobs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "absl/strings/str_format.h"
#include "common/buffer.h"
#include "common/dtype_conversion.h"
#include "server/update/parameter_squares.h"
#include "tests/server/update/rule_cases.h"

namespace optshard::testing {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
constexpr int64_t kLine = 64;
constexpr int64_t kPeriods[] = {1, 7, 100, 1024, 1028, 5000};

float AnyValue(std::mt19937& random, bool specials) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kSpecials[] = {0.0f, -0.0f, kInfinity, -kInfinity, NAN, 0x1p-149f, 3e38f};
  if (specials && random() % 64 == 0) return kSpecials[random() % std::size(kSpecials)];
  const float mantissa = 1 + static_cast<float>(random() & 0x7fffff) / 0x800000;
  const float value = std::ldexp(mantissa, static_cast<int>(random() % 16) - 12);
  return random() % 2 == 0 ? value : -value;
}

uint64_t BitsOfDouble(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// In double, of the values that are squared.
int64_t NotFinite(const SpanUpdate& span) {
  int64_t count = 0;
  for (int64_t i = 0; i < span.elements; ++i) {
    // Corrections keep what is not finite, and what is.
    const double one = SumOfParameterSquares(span.Part(i, 1), 0);
    const bool is_finite = span.parameter.dtype() == DType::kFloat64
                               ? std::isfinite(span.parameter.As<double>()[i])
                               : std::isfinite(one);
    count += is_finite ? 0 : 1;
  }
  return count;
}

}  // namespace

std::vector<SquaresShape> SquaresShapes() {
  return {
      {{1, 2, 3, 4, 5, 15, 16, 17, 0, 63, 64, 65, 1000}, true, false},
      {{1023, 1024, 1025, 0, 2047, 2048, 4096, 5000, 0}, true, false},
      {{1023, 1024, 1025, 2047, 2048, 3333}, false, false},
      {{3000, 1024, 700}, true, true},
      {{3001, 1026, 701}, false, true},
      {{(int64_t{2} * kSquaresTile + 3) * 1024 + 7}, true, false},
      {{0}, true, false},
  };
}

SquaresJob::SquaresJob(const SquaresShape& shape, uint32_t seed) : random_(seed) {
  size_t next = seed;
  for (const int64_t elements : shape.elements) {
    Array array;
    array.dtype = kTypes[next++ % std::size(kTypes)];
    array.elements = elements;
    std::vector<float> values(elements);
    for (float& value : values) value = AnyValue(random_, shape.specials);
    array.offset = Reserve(elements * static_cast<int64_t>(SizeOf(array.dtype)),
                           SizeOf(array.dtype), shape.aligned);
    if (array.dtype == DType::kFloat64) {
      // With all the bits of a double, so that squares are rounded; and squares beyond its range.
      std::vector<double> wide(values.begin(), values.end());
      for (double& value : wide) value *= 1 + static_cast<double>(random_()) * 0x1p-40;
      if (shape.specials) {
        for (size_t i = 0; i < wide.size(); i += 97) wide[i] = i % 2 == 0 ? 1e200 : 1e-170;
      }
      const char* const bytes = reinterpret_cast<const char*>(wide.data());
      std::copy_n(bytes, elements * sizeof(double), memory_.data() + array.offset);
    } else if (array.dtype == DType::kFloat32) {
      const char* const bytes = reinterpret_cast<const char*>(values.data());
      std::copy_n(bytes, elements * sizeof(float), memory_.data() + array.offset);
    } else {
      Narrow(array.dtype, values.data(), elements, memory_.data() + array.offset);
    }
    if (SizeOf(array.dtype) == 2 && random_() % 2 == 0) {
      array.correction = Reserve(elements, 1, shape.aligned);
      for (int64_t i = 0; i < elements; ++i) {
        memory_[array.correction + i] = static_cast<char>(static_cast<int>(random_() % 255) - 127);
      }
    }
    if (random_() % 2 == 0) array.period = kPeriods[random_() % std::size(kPeriods)];
    arrays_.push_back(array);
  }
  memory_.resize(memory_.size() + kLine);
}

int64_t SquaresJob::Reserve(int64_t bytes, size_t element_bytes, bool aligned) {
  auto offset = (static_cast<int64_t>(memory_.size()) + kLine - 1) / kLine * kLine;
  if (!aligned) offset += static_cast<int64_t>((1 + random_() % 3) * element_bytes);
  memory_.resize(offset + bytes);
  return offset;
}

SpanUpdate SquaresJob::SpanAt(char* at, const Array& array) const {
  SpanUpdate span;
  span.parameter = Buffer(at + array.offset, array.dtype);
  span.elements = array.elements;
  if (array.correction >= 0) span.correction = reinterpret_cast<int8_t*>(at + array.correction);
  return span;
}

SquaresTable SquaresJob::TableAt(void* at) const {
  SquaresTable table;
  for (const Array& array : arrays_) {
    table.AddParameter(SpanAt(static_cast<char*>(at), array), array.period);
  }
  return table;
}

std::string SquaresJob::Difference(const SumOfSquaresOnDevice* sums) const {
  AlignedFloats copy(memory_.size() / sizeof(float) + 1);
  std::memcpy(copy.data(), memory_.data(), memory_.size());
  for (size_t i = 0; i < arrays_.size(); ++i) {
    const Array& array = arrays_[i];
    const SpanUpdate span = SpanAt(reinterpret_cast<char*>(copy.data()), array);
    double squares = 0;
    const int64_t period = array.period == 0 ? std::max<int64_t>(array.elements, 1) : array.period;
    for (int64_t begin = 0; begin < array.elements; begin += period) {
      const int64_t count = std::min(period, array.elements - begin);
      squares = SumOfParameterSquares(span.Part(begin, count), squares);
    }
    const double actual = sums[i].squares;
    const bool equal = BitsOfDouble(squares) == BitsOfDouble(actual) ||
                       (std::isnan(squares) && std::isnan(actual));
    const int64_t not_finite = NotFinite(span);
    if (equal && sums[i].not_finite == not_finite) continue;
    return absl::StrFormat(
        "array %d, %s, %d elements, period %d%s: %a and %d not finite, expected %a and %d", i,
        NameOf(array.dtype), array.elements, array.period,
        span.correction == nullptr ? "" : ", corrected", actual, sums[i].not_finite, squares,
        not_finite);
  }
  return "";
}

}  // namespace optshard::testing

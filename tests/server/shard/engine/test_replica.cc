#include "tests/server/shard/engine/test_replica.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "absl/base/casts.h"
#include "absl/strings/str_format.h"
#include "common/half.h"
#include "common/row_marks.h"

namespace optshard::testing {

Values OrderSensitiveValues(const ParameterSpec& parameter, uint64_t seed) {
  std::mt19937_64 random(seed);
  Values values(parameter.elements());
  for (double& value : values) {
    const uint64_t bits = random();
    const double mantissa = 1.0 + static_cast<double>(bits >> 40) / (1 << 24);
    const int exponent = static_cast<int>(bits % 17) - 12;
    value = std::ldexp((bits & (1 << 20)) != 0 ? mantissa : -mantissa, exponent);
    value = RoundedTo(parameter.dtype, value);
  }
  return values;
}

double RoundedTo(DType dtype, double value) {
  switch (dtype) {
    case DType::kFloat64:
      return value;
    case DType::kFloat32:
      return static_cast<float>(value);
    case DType::kFloat16:
      return FromFloat16(ToFloat16(static_cast<float>(value)));
    case DType::kBFloat16:
      return FromBFloat16(ToBFloat16(static_cast<float>(value)));
  }
  return value;
}

void Store(const Values& values, Buffer to) {
  for (size_t i = 0; i < values.size(); ++i) {
    switch (to.dtype()) {
      case DType::kFloat64:
        to.As<double>()[i] = values[i];
        break;
      case DType::kFloat32:
        to.As<float>()[i] = static_cast<float>(values[i]);
        break;
      case DType::kFloat16:
        to.As<uint16_t>()[i] = ToFloat16(static_cast<float>(values[i]));
        break;
      case DType::kBFloat16:
        to.As<uint16_t>()[i] = ToBFloat16(static_cast<float>(values[i]));
        break;
    }
  }
}

Values Load(ConstBuffer from, int64_t elements) {
  Values values(elements);
  for (int64_t i = 0; i < elements; ++i) {
    switch (from.dtype()) {
      case DType::kFloat64:
        values[i] = from.As<double>()[i];
        break;
      case DType::kFloat32:
        values[i] = from.As<float>()[i];
        break;
      case DType::kFloat16:
        values[i] = FromFloat16(from.As<uint16_t>()[i]);
        break;
      case DType::kBFloat16:
        values[i] = FromBFloat16(from.As<uint16_t>()[i]);
        break;
    }
  }
  return values;
}

std::string BitDifference(const Values& expected, const Values& actual) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto a = absl::bit_cast<uint64_t>(expected[i]);
    const auto b = absl::bit_cast<uint64_t>(actual[i]);
    if (a == b) continue;
    return absl::StrFormat("element %d: expected %.17g (0x%016x), got %.17g (0x%016x)", i,
                           expected[i], a, actual[i], b);
  }
  return "";
}

std::string NameOf(Placement placement) {
  switch (placement) {
    case Placement::kFlatRegions:
      return "FlatRegions";
    case Placement::kFlatUnvouched:
      return "FlatUnvouched";
    case Placement::kScattered:
      return "Scattered";
    case Placement::kReachable:
      return "Reachable";
    case Placement::kOneCopy:
      return "OneCopy";
    case Placement::kNodes:
      return "Nodes";
  }
  return "";
}

TestReplica::TestReplica(const ParameterSpace& space, Placement placement,
                         const TestReplica* parameters_of, DeviceApi* device)
    : space_(space), layout_(space), placement_(placement), device_(device) {
  if (placement != Placement::kScattered) {
    for (const MemoryLayout::Region& region : layout_.regions()) {
      flat_[0].push_back(Allocate(region.elements, region.dtype));
      flat_[1].push_back(Allocate(region.elements, region.gradient_dtype));
    }
  }
  if (placement == Placement::kOneCopy && parameters_of != nullptr) {
    flat_[0] = parameters_of->flat_[0];
  }
  if (placement != Placement::kScattered && placement != Placement::kFlatUnvouched) {
    for (size_t r = 0; r < layout_.regions().size(); ++r) {
      regions_.push_back({flat_[0][r], flat_[1][r]});
    }
  }
  for (int p = 0; p < space.parameter_count(); ++p) {
    tensors_.push_back({Place(p, false), nullptr, GradientRows()});
    gradients_.push_back(Place(p, true));
  }
}

Buffer TestReplica::Place(int parameter, bool gradient) {
  if (placement_ != Placement::kScattered) {
    const MemoryLayout::Place& place = layout_.place(parameter);
    return flat_[gradient ? 1 : 0][place.region].From(place.offset_elements);
  }
  const ParameterSpec& spec = space_.parameter(parameter);
  return Allocate(spec.elements(), gradient ? spec.gradient_dtype() : spec.dtype);
}

// Of exactly so many elements where they are doubles, and otherwise as nearly as doubles allow.
Buffer TestReplica::Allocate(int64_t elements, DType dtype) {
  const size_t doubles = (elements * SizeOf(dtype) + sizeof(double) - 1) / sizeof(double);
  if (device_ == nullptr) {
    memory_.emplace_back(std::shared_ptr<double[]>(new double[doubles]()));
  } else {
    memory_.push_back(device_->AllocateOnHost(doubles * sizeof(double)).value());
    std::memset(memory_.back().get(), 0, doubles * sizeof(double));
  }
  return Buffer(memory_.back().get(), dtype);
}

void TestReplica::SetParameter(int parameter, const Values& values) {
  Store(values, tensors_[parameter].parameter);
}

void TestReplica::SetGradient(int parameter, const Values& values) {
  Store(values, gradients_[parameter]);
  tensors_[parameter].gradient = gradients_[parameter];
  tensors_[parameter].gradient_rows = GradientRows();
}

void TestReplica::SetGradientRows(int parameter, const std::function<bool(int64_t row)>& has) {
  const ParameterSpec& spec = space_.parameter(parameter);
  std::vector<uint64_t>& marks = row_marks_[parameter];
  // A word even where the parameter has no rows: marks are what says that a gradient is sparse.
  marks.assign(std::max<size_t>(1, RowMarkWords(RowsOf(spec))), 0);
  for (int64_t row = 0; row < RowsOf(spec); ++row) {
    if (has(row)) MarkRow(marks.data(), row);
  }
  tensors_[parameter].gradient_rows = {marks.data(),
                                       spec.elements() / std::max<int64_t>(1, RowsOf(spec))};
}

Values TestReplica::Parameter(int parameter) const {
  return Load(tensors_[parameter].parameter, space_.parameter(parameter).elements());
}

Values TestReplica::Gradient(int parameter) const {
  return Load(gradients_[parameter], space_.parameter(parameter).elements());
}

}  // namespace optshard::testing

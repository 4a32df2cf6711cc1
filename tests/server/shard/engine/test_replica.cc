#include "tests/server/shard/engine/test_replica.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/base/casts.h"
#include "absl/strings/str_format.h"

namespace optshard::testing {

std::vector<float> OrderSensitiveValues(int64_t elements, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(elements);
  for (float& value : values) {
    const uint64_t bits = random();
    const double mantissa = 1.0 + static_cast<double>(bits >> 40) / (1 << 24);
    const int exponent = static_cast<int>(bits % 17) - 12;
    value =
        static_cast<float>(std::ldexp((bits & (1 << 20)) != 0 ? mantissa : -mantissa, exponent));
  }
  return values;
}

std::string BitDifference(const std::vector<float>& expected, const std::vector<float>& actual) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const uint32_t a = absl::bit_cast<uint32_t>(expected[i]);
    const uint32_t b = absl::bit_cast<uint32_t>(actual[i]);
    if (a == b) continue;
    return absl::StrFormat("element %d: expected %.9g (0x%08x), got %.9g (0x%08x)", i, expected[i],
                           a, actual[i], b);
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
  }
  return "";
}

TestReplica::TestReplica(const ParameterSpace& space, Placement placement,
                         const TestReplica* parameters_of)
    : space_(space), layout_(space), placement_(placement) {
  if (placement != Placement::kScattered) {
    for (const MemoryLayout::Region& region : layout_.regions()) {
      for (std::vector<float*>& flat : flat_) {
        memory_.push_back(std::make_unique<float[]>(region.elements));
        flat.push_back(memory_.back().get());
      }
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
    tensors_.push_back({Place(p, false), nullptr});
    gradients_.push_back(Place(p, true));
  }
}

float* TestReplica::Place(int parameter, bool gradient) {
  if (placement_ != Placement::kScattered) {
    const MemoryLayout::Place& place = layout_.place(parameter);
    return flat_[gradient ? 1 : 0][place.region] + place.offset_elements;
  }
  memory_.push_back(std::make_unique<float[]>(space_.parameter(parameter).elements()));
  return memory_.back().get();
}

void TestReplica::SetParameter(int parameter, const std::vector<float>& values) {
  std::copy(values.begin(), values.end(), tensors_[parameter].parameter);
}

void TestReplica::SetGradient(int parameter, const std::vector<float>& values) {
  std::copy(values.begin(), values.end(), gradients_[parameter]);
  tensors_[parameter].gradient = gradients_[parameter];
}

std::vector<float> TestReplica::Parameter(int parameter) const {
  const float* const first = tensors_[parameter].parameter;
  return {first, first + space_.parameter(parameter).elements()};
}

std::vector<float> TestReplica::Gradient(int parameter) const {
  return {gradients_[parameter], gradients_[parameter] + space_.parameter(parameter).elements()};
}

}  // namespace optshard::testing

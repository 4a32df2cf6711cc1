// Our rules against what PyTorch's (its Python classes) made of the same gradients: parameter and
// slots after 100 steps, in float32, and against its own error to float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/parameter_space.h"
#include "server/update/update_rule.h"
#include "tests/server/update/golden/torch_goldens.h"

namespace optshard::testing {
namespace {

constexpr double kLargestDistance = 1e-6;     // to PyTorch: max|a-b| / max|b|
constexpr double kLargestDistance64 = 1e-13;  // likewise in float64
// Of PyTorch's own error to float64, in the mean, and of one element, which is luck in part.
// PyTorch fuses multiply-adds on this CPU, which a formula may not (docs/numerics.md).
constexpr double kErrorFactor = 1.2;
constexpr double kLargestFactor = 2;
// Of Muon, which PyTorch and we compute in bfloat16.
constexpr double kLargestDistanceInBFloat16 = 0.01;
constexpr double kErrorFactorInBFloat16 = 1.1;

bool IsMuons(const GoldenCase& golden) { return golden.rule == "muon"; }

template <typename T>
using Tensors = std::map<std::string, std::vector<T>>;

// In T: float or double.
template <typename T>
Tensors<T> RunOurs(const GoldenCase& golden, DriverKind driver) {
  static const auto* const data = new GoldenData(MakeGoldenData());
  const UpdateRule& rule = **RuleRegistry::Find(golden.rule);
  const Hyperparameters group = *rule.Validate(golden.given);
  const int64_t elements = ElementsOf(golden.shape);
  Tensors<T> tensors;
  tensors["parameter"].assign(data->parameter.begin(), data->parameter.begin() + elements);
  SpanUpdate span;
  span.parameter = tensors["parameter"].data();
  span.elements = elements;
  span.shape = golden.shape;
  size_t k = 0;
  for (const Slot& slot : rule.Slots(group)) {
    SlotArray& array = span.slots[k++];
    if (!slot.ShapeFor(golden.shape).has_value()) continue;
    tensors[slot.name].assign(slot.ValuesFor(golden.shape, elements), static_cast<T>(slot.initial));
    array = tensors[slot.name].data();
  }
  struct alignas(64) Line {
    char bytes[64];
  };
  std::vector<Line> workspace(
      rule.WorkspaceBytes(golden.shape, span.parameter.dtype()) / sizeof(Line) + 1);
  span.workspace = workspace.data();
  ScalarSlots scalars = rule.InitialScalarSlots(group);
  for (int step = 1; step <= kGoldenSteps; ++step) {
    const std::vector<float>& float32 = data->gradients[step - 1];
    const std::vector<T> gradient(float32.begin(), float32.end());
    span.gradient = gradient.data();
    const Coefficients coefficients = rule.Prepare(group, step, span.parameter.dtype(), scalars);
    rule.Update(driver, coefficients, span);
    scalars = coefficients.scalar_slots;
  }
  return tensors;
}

struct Distance {
  double largest = 0;  // as a share of the largest value
  double mean = 0;     // likewise of the root mean square
};

template <typename T, typename Of>
Distance Between(const std::vector<T>& a, const std::vector<Of>& b) {
  double largest = 0;
  double size = 0;
  double squares = 0;
  double size_squares = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    const double value = std::abs(static_cast<double>(b[i]));
    largest = std::max(largest, difference);
    size = std::max(size, value);
    squares += difference * difference;
    size_squares += value * value;
  }
  return {largest / size, std::sqrt(squares / size_squares)};
}

class TorchGoldenTest : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(TorchGoldenTest, HundredSteps_CloseToPyTorchAndNoLessAccurate) {
  const GoldenCase& golden = GetParam();
  const Tensors<float> ours = RunOurs<float>(golden, DriverKind::kSimd);
  EXPECT_EQ(ours, RunOurs<float>(golden, DriverKind::kScalar));
  ASSERT_EQ(ours.size(), golden.tensors.size());
  for (const auto& [name, values] : ours) {
    ASSERT_EQ(golden.tensors.count(name), 1u) << name;
    const Golden& peer = golden.tensors.at(name);
    const bool is_rough = IsMuons(golden) && name == "parameter";
    EXPECT_LE(Between(values, peer.float32).largest,
              is_rough ? kLargestDistanceInBFloat16 : kLargestDistance)
        << name;
    const Distance error = Between(values, peer.float64);
    const Distance of_peer = Between(peer.float32, peer.float64);
    EXPECT_LE(error.mean, (is_rough ? kErrorFactorInBFloat16 : kErrorFactor) * of_peer.mean)
        << name;
    EXPECT_LE(error.largest, kLargestFactor * of_peer.largest) << name;
  }
}

TEST_P(TorchGoldenTest, HundredStepsInFloat64_ArePyTorchs) {
  for (const auto& [name, values] : RunOurs<double>(GetParam(), DriverKind::kSimd)) {
    const Golden& peer = GetParam().tensors.at(name);
    if (IsMuons(GetParam()) && name == "parameter") {
      EXPECT_LE(Between(values, peer.float64).mean,
                kErrorFactorInBFloat16 * Between(peer.float32, peer.float64).mean);
      continue;
    }
    EXPECT_LE(Between(values, peer.float64).largest, kLargestDistance64) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, TorchGoldenTest, ::testing::ValuesIn(ReadTorchGoldens()),
                         [](const auto& info) { return info.param.rule + info.param.name; });

TEST(TorchGoldens, CoverEveryRuleThatPyTorchHas) {
  std::set<std::string> covered;
  for (const GoldenCase& golden : ReadTorchGoldens()) covered.insert(golden.rule);
  for (const UpdateRule* rule : RuleRegistry::All()) {
    if (rule->spec().source.find("pytorch.org") == std::string::npos) continue;
    EXPECT_EQ(covered.count(rule->spec().name), 1u) << rule->spec().name;
  }
}

}  // namespace
}  // namespace optshard::testing

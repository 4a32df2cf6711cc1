// Our rules against what PyTorch's (its Python classes) made of the same gradients, or the papers'
// algorithms where PyTorch has none: parameter and slots after 100 steps, in float32, and against
// its own error to float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/dtype_conversion.h"
#include "common/parameter_space.h"
#include "server/update/update_rule.h"
#include "tests/server/update/golden/torch_goldens.h"

namespace optshard::testing {
namespace {

constexpr double kLargestDistance = 1e-6;     // to PyTorch: max|a-b| / max|b|
constexpr double kLargestRounding = 5e-6;     // to float64, in a hundred steps of float32
constexpr double kLargestDistance64 = 1e-13;  // likewise in float64
// Of PyTorch's own error to float64, in the mean, and of one element, which is luck in part.
// PyTorch fuses multiply-adds on this CPU, which a formula may not (docs/numerics.md).
constexpr double kErrorFactor = 1.2;
constexpr double kLargestFactor = 2;
// In the 16-bit types.
constexpr double kErrorFactorInHalf = 1.1;
// Of Muon, which PyTorch and we compute in bfloat16.
constexpr double kLargestDistanceInBFloat16 = 0.01;
constexpr double kErrorFactorInBFloat16 = 1.1;
// With masters Muon's error is that of its products alone, which PyTorch sums in another order.
constexpr double kErrorFactorOfProducts = 1.3;

bool IsMuons(const GoldenCase& golden) { return golden.rule == "muon"; }
// PyTorch has none of these: the reference follows the paper, and is no implementation to be as
// accurate as.
bool IsOfAPaper(const GoldenCase& golden) { return golden.rule == "lion" || golden.rule == "lamb"; }

const GoldenData& Data() {
  static const auto* const data = new GoldenData(MakeGoldenData());
  return *data;
}

// Memory of a thread's own, for rules that are not element-wise.
class Workspace {
 public:
  Workspace(const UpdateRule& rule, absl::Span<const int64_t> shape, DType dtype)
      : lines_(rule.WorkspaceBytes(shape, dtype) / sizeof(Line) + 1) {}
  void* data() { return lines_.data(); }

 private:
  struct alignas(64) Line {
    char bytes[64];
  };
  std::vector<Line> lines_;
};

template <typename T>
using Tensors = std::map<std::string, std::vector<T>>;

// In T: float or double.
template <typename T>
Tensors<T> RunOurs(const GoldenCase& golden, DriverKind driver) {
  const UpdateRule& rule = **RuleRegistry::Find(golden.rule);
  const Hyperparameters group = *rule.Validate(golden.given);
  const int64_t elements = ElementsOf(golden.shape);
  Tensors<T> tensors;
  tensors["parameter"].assign(Data().parameter.begin(), Data().parameter.begin() + elements);
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
  Workspace workspace(rule, golden.shape, span.parameter.dtype());
  span.workspace = workspace.data();
  ScalarSlots scalars = rule.InitialScalarSlots(group);
  for (int step = 1; step <= kGoldenSteps; ++step) {
    const std::vector<float>& float32 = Data().gradients[step - 1];
    const std::vector<T> gradient(float32.begin(), float32.end());
    span.gradient = gradient.data();
    const Coefficients coefficients = rule.Prepare(group, step, span.parameter.dtype(), scalars);
    rule.Update(driver, coefficients, span);
    scalars = coefficients.scalar_slots;
  }
  for (size_t i = 0; i < rule.spec().scalar_slots.size(); ++i) {
    tensors[rule.spec().scalar_slots[i].name] = {static_cast<T>(scalars[i])};
  }
  return tensors;
}

// The parameter after all steps, rounded to the case's type; with a master, what that is.
std::vector<float> RunOursInHalf(const GoldenCase& golden, DType slot_dtype, bool has_master) {
  const UpdateRule& rule = **RuleRegistry::Find(golden.rule);
  const Hyperparameters group = *rule.Validate(golden.given);
  const int64_t elements = ElementsOf(golden.shape);
  std::vector<uint16_t> parameter(elements);
  Narrow(golden.dtype, Data().parameter.data(), elements, parameter.data());
  std::vector<float> master(elements);
  Widen(golden.dtype, parameter.data(), elements, master.data());
  SpanUpdate span;
  span.parameter = Buffer(parameter.data(), golden.dtype);
  if (has_master) span.master = master.data();
  span.elements = elements;
  span.shape = golden.shape;
  const std::vector<Slot> slots = rule.Slots(group);
  std::vector<std::vector<float>> memory(slots.size());  // enough for the narrower types, too
  for (size_t k = 0; k < slots.size(); ++k) {
    if (!slots[k].ShapeFor(golden.shape).has_value()) continue;
    const std::vector<float> initial(slots[k].ValuesFor(golden.shape, elements),
                                     static_cast<float>(slots[k].initial));
    memory[k] = initial;
    if (slot_dtype != DType::kFloat32) {
      Narrow(slot_dtype, initial.data(), static_cast<int64_t>(initial.size()), memory[k].data());
    }
    span.slots[k] = Buffer(memory[k].data(), slot_dtype);
  }
  Workspace workspace(rule, golden.shape, golden.dtype);
  span.workspace = workspace.data();
  ScalarSlots scalars = rule.InitialScalarSlots(group);
  for (int step = 1; step <= kGoldenSteps; ++step) {
    std::vector<uint16_t> gradient(elements);
    Narrow(golden.dtype, Data().gradients[step - 1].data(), elements, gradient.data());
    span.gradient = ConstBuffer(gradient.data(), golden.dtype);
    const Coefficients coefficients = rule.Prepare(group, step, golden.dtype, scalars);
    rule.Update(DriverKind::kSimd, coefficients, span);
    scalars = coefficients.scalar_slots;
  }
  if (!has_master) Widen(golden.dtype, parameter.data(), elements, master.data());
  return master;
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
    if (IsOfAPaper(golden)) {
      EXPECT_LE(error.largest, kLargestRounding) << name;
      continue;
    }
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

class TorchGoldenHalfTest : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(TorchGoldenHalfTest, HundredSteps_NoLessAccurateThanPyTorch) {
  const GoldenCase& golden = GetParam();
  const Golden& in_half = golden.tensors.at("parameter");
  const Golden& on_copies = golden.tensors.at("master");
  const double of_peer = Between(in_half.float32, in_half.float64).mean;
  const double of_copies = Between(on_copies.float32, on_copies.float64).mean;
  const auto error = [&](DType slot_dtype, bool has_master) {
    return Between(RunOursInHalf(golden, slot_dtype, has_master), in_half.float64).mean;
  };
  EXPECT_LE(error(DType::kFloat32, /*has_master=*/true),
            (IsMuons(golden) ? kErrorFactorOfProducts : kErrorFactorInHalf) * of_copies);
  EXPECT_LE(error(DType::kFloat32, /*has_master=*/false), kErrorFactorInHalf * of_peer);
  // What PyTorch does: its slots have the parameter's type.
  if (golden.dtype == DType::kBFloat16) {
    EXPECT_LE(error(DType::kBFloat16, /*has_master=*/false), kErrorFactorInHalf * of_peer);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TorchGoldenHalfTest,
                         ::testing::ValuesIn(ReadTorchGoldens(GoldenTypes::kHalf)),
                         [](const auto& info) { return info.param.rule + info.param.name; });

// The other rules of PyTorch: torch_oracle_test.cc steps them beside torch::optim.
TEST(TorchGoldens, CoverInHalfEveryDenseRuleThatTorchOptimInCppDoesNotHave) {
  std::set<std::string> covered = {"adagrad", "adam", "adamw", "rmsprop", "sgd"};
  for (const GoldenCase& golden : ReadTorchGoldens(GoldenTypes::kHalf)) covered.insert(golden.rule);
  for (const UpdateRule* rule : RuleRegistry::All()) {
    if (rule->spec().source.find("pytorch.org") == std::string::npos) continue;
    if (rule->spec().sparse_gradients == SparseGradients::kOnly) continue;
    EXPECT_EQ(covered.count(rule->spec().name), 1u) << rule->spec().name;
  }
}

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

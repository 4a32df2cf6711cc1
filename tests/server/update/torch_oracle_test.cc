// Our rules against torch::optim's (LibTorch) over 100 steps, tensor by tensor and slot by slot.
// torch::optim runs twice: in float32, as the peer, and in float64, as the truth. The same with
// parameters and gradients in the 16-bit types.
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/update/update_rule.h"
#include "tests/server/update/torch_oracle_cases.h"

namespace optshard {
namespace {

constexpr int kSteps = 100;
constexpr int64_t kElements = 2003;  // not a multiple of any vector
constexpr int kSeeds = 10;
constexpr double kLargestDistance = 1e-6;  // to torch: max|a-b| / max|b|
constexpr double kErrorFactor = 1.1;       // of torch's own error against float64; over all seeds

using Tensors = std::map<std::string, std::vector<double>>;  // "parameter" and the slots

std::vector<float> Normal(int64_t elements, double scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(elements);
  for (float& value : values) value = static_cast<float>(scale * normal(random));
  return values;
}

std::vector<float> Gradient(const OracleCase& oracle, uint32_t seed, int step) {
  // With a mean per element, so that averages of gradients do not just cancel.
  std::vector<float> gradient = Normal(kElements, oracle.gradient_scale, seed + step);
  const std::vector<float> mean = Normal(kElements, oracle.gradient_scale, seed - 1);
  for (int64_t i = 0; i < kElements; ++i) gradient[i] += 0.5f * mean[i];
  return gradient;
}

std::vector<double> Widened(const torch::Tensor& tensor) {
  const torch::Tensor wide = tensor.detach().to(torch::kDouble).contiguous();
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
}

void AddSlots(torch::optim::OptimizerParamState& state, Tensors& out) {
  if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&state)) {
    out["exp_avg"] = Widened(adam->exp_avg());
    out["exp_avg_sq"] = Widened(adam->exp_avg_sq());
    if (adam->max_exp_avg_sq().defined()) out["max_exp_avg_sq"] = Widened(adam->max_exp_avg_sq());
  } else if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(&state)) {
    out["exp_avg"] = Widened(adamw->exp_avg());
    out["exp_avg_sq"] = Widened(adamw->exp_avg_sq());
    if (adamw->max_exp_avg_sq().defined()) out["max_exp_avg_sq"] = Widened(adamw->max_exp_avg_sq());
  } else if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(&state)) {
    if (sgd->momentum_buffer().defined()) out["momentum_buffer"] = Widened(sgd->momentum_buffer());
  } else if (auto* adagrad = dynamic_cast<torch::optim::AdagradParamState*>(&state)) {
    out["sum"] = Widened(adagrad->sum());
  } else if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropParamState*>(&state)) {
    out["square_avg"] = Widened(rmsprop->square_avg());
    if (rmsprop->momentum_buffer().defined()) {
      out["momentum_buffer"] = Widened(rmsprop->momentum_buffer());
    }
    if (rmsprop->grad_avg().defined()) out["grad_avg"] = Widened(rmsprop->grad_avg());
  }
}

// torch::optim has no maximize in C++: it descends on the negated gradient, which is the same.
Tensors RunTorch(const OracleCase& oracle, uint32_t seed, bool maximize, torch::Dtype dtype) {
  std::vector<float> start = Normal(kElements, oracle.parameter_scale, seed);
  torch::Tensor parameter = torch::from_blob(start.data(), {kElements}).to(dtype).clone();
  parameter.set_requires_grad(true);
  auto optimizer = oracle.torch_optimizer({parameter});
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<float> gradient = Gradient(oracle, seed, step);
    torch::Tensor tensor = torch::from_blob(gradient.data(), {kElements}).to(dtype).clone();
    parameter.mutable_grad() = maximize ? -tensor : tensor;
    optimizer->step();
  }
  Tensors out;
  out["parameter"] = Widened(parameter);
  for (auto& [key, state] : optimizer->state()) AddSlots(*state, out);
  return out;
}

// Rounded to `dtype` on both sides: the gradients that a trainer in that type would have.
torch::Tensor InDType(const std::vector<float>& values, torch::Dtype dtype) {
  return torch::tensor(values).to(dtype);
}

// Parameter and gradients in a 16-bit type, the state in `slot_dtype`; the parameter after all
// steps.
struct HalfRun {
  std::vector<double> parameter;
  std::vector<double> master;  // empty: it had none
};
HalfRun RunOursInHalf(const OracleCase& oracle, uint32_t seed, torch::Dtype torch_dtype,
                      DType dtype, bool has_master, torch::Dtype slot_dtype = torch::kFloat) {
  const UpdateRule& rule = **RuleRegistry::Find(oracle.rule);
  const Hyperparameters group = *rule.Validate(oracle.given);
  const torch::Tensor parameter =
      InDType(Normal(kElements, oracle.parameter_scale, seed), torch_dtype);
  const torch::Tensor master = parameter.to(torch::kFloat);
  std::vector<torch::Tensor> slots;
  for (const Slot& slot : rule.Slots(group)) {
    slots.push_back(torch::full({kElements}, slot.initial, slot_dtype));
  }
  const DType slots_are = slot_dtype == torch::kFloat ? DType::kFloat32 : dtype;
  for (int step = 1; step <= kSteps; ++step) {
    const torch::Tensor gradient = InDType(Gradient(oracle, seed, step), torch_dtype);
    SpanUpdate span;
    span.parameter = Buffer(parameter.data_ptr(), dtype);
    span.gradient = ConstBuffer(gradient.data_ptr(), dtype);
    if (has_master) span.master = master.data_ptr<float>();
    for (size_t k = 0; k < slots.size(); ++k) {
      span.slots[k] = Buffer(slots[k].data_ptr(), slots_are);
    }
    span.elements = kElements;
    rule.Update(DriverKind::kSimd, rule.Prepare(group, step, dtype), span);
  }
  HalfRun run;
  run.parameter = Widened(parameter);
  if (has_master) {
    EXPECT_TRUE(torch::equal(parameter, master.to(torch_dtype)));
    run.master = Widened(master);
  }
  return run;
}

// The same data as torch::optim steps them in `dtype`.
std::vector<double> RunTorchFromHalf(const OracleCase& oracle, uint32_t seed, bool maximize,
                                     torch::Dtype half, torch::Dtype dtype) {
  torch::Tensor parameter =
      InDType(Normal(kElements, oracle.parameter_scale, seed), half).to(dtype).clone();
  parameter.set_requires_grad(true);
  auto optimizer = oracle.torch_optimizer({parameter});
  for (int step = 1; step <= kSteps; ++step) {
    const torch::Tensor gradient = InDType(Gradient(oracle, seed, step), half).to(dtype).clone();
    parameter.mutable_grad() = maximize ? -gradient : gradient;
    optimizer->step();
  }
  return Widened(parameter);
}

Tensors RunOurs(const OracleCase& oracle, uint32_t seed, DriverKind driver) {
  const UpdateRule& rule = **RuleRegistry::Find(oracle.rule);
  const Hyperparameters group = *rule.Validate(oracle.given);
  std::vector<float> parameter = Normal(kElements, oracle.parameter_scale, seed);
  const std::vector<Slot> specs = rule.Slots(group);
  std::vector<std::vector<float>> slots;
  for (const Slot& slot : specs) slots.emplace_back(kElements, slot.initial);
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<float> gradient = Gradient(oracle, seed, step);
    SpanUpdate span;
    span.parameter = parameter.data();
    span.gradient = gradient.data();
    for (size_t k = 0; k < slots.size(); ++k) span.slots[k] = slots[k].data();
    span.elements = kElements;
    rule.Update(driver, rule.Prepare(group, step), span);
  }
  Tensors out;
  out["parameter"] = {parameter.begin(), parameter.end()};
  for (size_t k = 0; k < slots.size(); ++k) {
    out[specs[k].name] = {slots[k].begin(), slots[k].end()};
  }
  return out;
}

double LargestDistance(const std::vector<double>& a, const std::vector<double>& b) {
  double distance = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    distance = std::max(distance, std::abs(a[i] - b[i]));
    size = std::max(size, std::abs(b[i]));
  }
  return distance / size;
}

double RootMeanSquareDistance(const std::vector<double>& a, const std::vector<double>& b) {
  double distance = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    distance += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(distance / size);
}

class TorchOracleTest : public ::testing::TestWithParam<OracleCase> {};

// Errors against float64, summed over the seeds: one seed's largest error is one element's luck.
struct Errors {
  double largest = 0, largest_of_torch = 0;
  double mean = 0, mean_of_torch = 0;
};

TEST_P(TorchOracleTest, HundredSteps_CloseToTorchAndNoLessAccurate) {
  const OracleCase& oracle = GetParam();
  const HyperValue* maximize = oracle.given.Find("maximize");
  const bool negate = maximize != nullptr && absl::get<bool>(*maximize);
  std::map<std::string, Errors> errors;
  std::map<std::string, double> farthest;
  for (int k = 0; k < kSeeds; ++k) {
    const uint32_t seed = 1000 * (k + 1);
    const Tensors peer = RunTorch(oracle, seed, negate, torch::kFloat);
    const Tensors truth = RunTorch(oracle, seed, negate, torch::kDouble);
    const Tensors ours = RunOurs(oracle, seed, DriverKind::kSimd);
    ASSERT_EQ(ours, RunOurs(oracle, seed, DriverKind::kScalar)) << "seed " << seed;
    ASSERT_EQ(ours.size(), peer.size());
    for (const auto& [tensor, values] : ours) {
      ASSERT_EQ(peer.count(tensor), 1u) << tensor;
      const double distance = LargestDistance(values, peer.at(tensor));
      EXPECT_LE(distance, kLargestDistance) << tensor << ", seed " << seed;
      farthest[tensor] = std::max(farthest[tensor], distance);
      Errors& sum = errors[tensor];
      sum.largest += LargestDistance(values, truth.at(tensor)) / kSeeds;
      sum.largest_of_torch += LargestDistance(peer.at(tensor), truth.at(tensor)) / kSeeds;
      sum.mean += RootMeanSquareDistance(values, truth.at(tensor)) / kSeeds;
      sum.mean_of_torch += RootMeanSquareDistance(peer.at(tensor), truth.at(tensor)) / kSeeds;
    }
  }
  for (const auto& [tensor, sum] : errors) {
    // The table of docs/numerics.md.
    std::printf("| %s | %s | %s | %.1e | %.1e / %.1e | %.1e / %.1e |\n", oracle.rule.c_str(),
                oracle.name.c_str(), tensor.c_str(), farthest[tensor], sum.largest,
                sum.largest_of_torch, sum.mean, sum.mean_of_torch);
    EXPECT_LE(sum.largest, kErrorFactor * sum.largest_of_torch) << tensor;
    EXPECT_LE(sum.mean, kErrorFactor * sum.mean_of_torch) << tensor;
  }
}

TEST_P(TorchOracleTest, HundredStepsInHalfTypes_NoLessAccurateThanTorch) {
  const OracleCase& oracle = GetParam();
  const HyperValue* maximize = oracle.given.Find("maximize");
  const bool negate = maximize != nullptr && absl::get<bool>(*maximize);
  for (const auto& [half, dtype] :
       {std::pair(torch::kBFloat16, DType::kBFloat16), std::pair(torch::kHalf, DType::kFloat16)}) {
    double ours = 0;
    double of_torch = 0;
    double with_bfloat16_slots = 0;
    double of_master = 0;
    double of_float32 = 0;  // torch::optim on a float32 copy
    for (int k = 0; k < kSeeds; ++k) {
      const uint32_t seed = 1000 * (k + 1);
      const std::vector<double> truth =
          RunTorchFromHalf(oracle, seed, negate, half, torch::kDouble);
      const HalfRun without = RunOursInHalf(oracle, seed, half, dtype, /*has_master=*/false);
      const HalfRun with = RunOursInHalf(oracle, seed, half, dtype, /*has_master=*/true);
      ours += RootMeanSquareDistance(without.parameter, truth) / kSeeds;
      if (dtype == DType::kBFloat16) {
        const HalfRun run = RunOursInHalf(oracle, seed, half, dtype, /*has_master=*/false, half);
        with_bfloat16_slots += RootMeanSquareDistance(run.parameter, truth) / kSeeds;
      }
      of_master += RootMeanSquareDistance(with.master, truth) / kSeeds;
      const std::vector<double> copy = RunTorchFromHalf(oracle, seed, negate, half, torch::kFloat);
      of_float32 += RootMeanSquareDistance(copy, truth) / kSeeds;
      of_torch +=
          RootMeanSquareDistance(RunTorchFromHalf(oracle, seed, negate, half, half), truth) /
          kSeeds;
    }
    std::printf("| %s | %s | %s | %.1e / %.1e | %.1e / %.1e |\n", oracle.rule.c_str(),
                oracle.name.c_str(), std::string(NameOf(dtype)).c_str(), ours, of_torch, of_master,
                of_float32);
    EXPECT_LE(of_master, kErrorFactor * of_float32) << NameOf(dtype);
    // Where squares underflow in float16, torch divides by 0 and has no error that could be a
    // bound.
    if (std::isfinite(of_torch)) {
      EXPECT_LE(ours, kErrorFactor * of_torch) << NameOf(dtype);
      // What torch does: its slots have the parameter's type.
      EXPECT_LE(with_bfloat16_slots, kErrorFactor * of_torch) << NameOf(dtype);
    }
    EXPECT_TRUE(std::isfinite(ours)) << NameOf(dtype);
  }
}

std::string NameOf(const ::testing::TestParamInfo<OracleCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Adam, TorchOracleTest, ::testing::ValuesIn(AdamCases()), NameOf);
INSTANTIATE_TEST_SUITE_P(AdamW, TorchOracleTest, ::testing::ValuesIn(AdamWCases()), NameOf);
INSTANTIATE_TEST_SUITE_P(Adagrad, TorchOracleTest, ::testing::ValuesIn(AdagradCases()), NameOf);
INSTANTIATE_TEST_SUITE_P(Rmsprop, TorchOracleTest, ::testing::ValuesIn(RmspropCases()), NameOf);
INSTANTIATE_TEST_SUITE_P(Sgd, TorchOracleTest, ::testing::ValuesIn(SgdCases()), NameOf);

}  // namespace
}  // namespace optshard

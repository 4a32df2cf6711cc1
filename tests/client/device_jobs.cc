#include "tests/client/device_jobs.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/state_dict.h"
#include "tests/client/tensors.h"

namespace optshard::testing {
namespace {

const std::vector<std::vector<int64_t>> kShapes = {{32, 17}, {33}, {}, {0, 4}, {2100}};

at::Tensor Values(size_t parameter, double scale) {
  int64_t elements = 1;
  for (const int64_t size : kShapes[parameter]) elements *= size;
  return at::arange(elements, at::kFloat)
      .remainder(7)
      .sub(3)
      .mul(scale)
      .reshape(kShapes[parameter])
      .clone();
}

const RuleOptions& Adam() {
  static const RuleOptions adam = RuleOptions("adam").Set("lr", 0.01);
  return adam;
}

}  // namespace

std::string BytesOnHost(const at::Tensor& tensor) { return BytesOf(tensor.detach().cpu()); }

DeviceTrainer::DeviceTrainer(ShardedOptimizerOptions given, c10::Device device, at::ScalarType type)
    : options(std::move(given)) {
  options.buckets.max_bytes = 4096;
  options.buckets.pack_below_bytes = 512;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    parameters.push_back(Values(i, 0.25).to(type).to(device).set_requires_grad(true));
  }
}

void DeviceTrainer::Make(const RuleOptions& rule) {
  optimizer = std::make_unique<ShardedOptimizer>(parameters, rule, options);
}

void DeviceTrainer::Step() {
  ++steps_;
  optimizer->zero_grad();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (steps_ == 2 && i == 1) continue;
    const at::Tensor factors =
        Values(i, 0.5 * steps_ + options.rank).to(parameters[i].scalar_type());
    parameters[i].mul(factors.to(parameters[i].device())).sum().backward();
  }
  optimizer->step();
}

std::string DeviceTrainer::Everything() const {
  std::string all;
  for (const at::Tensor& parameter : parameters) {
    absl::StrAppend(&all, BytesOnHost(parameter), ";");
    for (const auto& [name, slot] : optimizer->state(parameter)) {
      absl::StrAppend(&all, name, "=", BytesOnHost(slot), ";");
    }
  }
  return all;
}

std::vector<DeviceWay> DeviceWays() {
  return {{"OneRank", 1},
          {"Flat"},
          {"InPlace", 2, BucketView::kOff},
          {"ThreeRanks", 3},
          {"Masters", 2, BucketView::kAutomatic, at::kBFloat16, true},
          {"MainGradients", 2, BucketView::kAutomatic, at::kBFloat16, true, true},
          {"EightBits", 2, BucketView::kAutomatic, at::kFloat, false, false, "int8_dynamic"}};
}

std::string TakeSteps(const DeviceWay& way, const ShardedOptimizerOptions& given,
                      c10::Device device) {
  ShardedOptimizerOptions options = given;
  options.parameters_as_bucket_view = way.view;
  options.master_weights = way.master_weights;
  options.main_gradients = way.main_gradients;
  options.state_dtype = way.state_dtype;
  DeviceTrainer trainer(options, device, way.type);
  trainer.Make(Adam());
  for (int step = 0; step < 3; ++step) trainer.Step();
  for (const at::Tensor& parameter : trainer.parameters) EXPECT_EQ(parameter.device(), device);
  trainer.optimizer->verify_replicas();
  return trainer.Everything();
}

std::string ChangeState(const ShardedOptimizerOptions& options, c10::Device device) {
  DeviceTrainer trainer(options, device);
  trainer.Make(Adam());
  trainer.Step();
  const StateDict early = trainer.optimizer->state_dict(true);
  trainer.optimizer->param_groups()[0].options().set_lr(0.02);  // as schedulers do
  trainer.Step();
  {
    const at::NoGradGuard no_grad;
    if (options.rank == 0) trainer.parameters[0].mul_(2);
  }
  trainer.optimizer->refresh_parameters();
  trainer.optimizer->load_state_dict(early);
  trainer.Step();
  for (const at::Tensor& parameter : trainer.parameters) {
    auto state = trainer.optimizer->state(parameter);
    if (state.empty() || state.at("exp_avg").numel() == 0) continue;
    state.at("exp_avg").fill_(0.5);
    trainer.optimizer->set_state(parameter, state);
  }
  trainer.Step();
  return trainer.Everything();
}

std::string SaveAndLoad(const std::string& directory, const ShardedOptimizerOptions& options,
                        c10::Device device) {
  DeviceTrainer trainer(options, device);
  trainer.Make(Adam());
  trainer.Step();
  trainer.optimizer->save_checkpoint(directory);
  trainer.Step();
  trainer.optimizer->wait_checkpoint();
  trainer.optimizer->load_checkpoint(directory);
  EXPECT_EQ(trainer.optimizer->finished_step(), 1u);
  trainer.Step();
  return trainer.Everything();
}

std::string AddParameters(const ShardedOptimizerOptions& options, c10::Device device) {
  DeviceTrainer trainer(options, device);
  trainer.Make(Adam());
  trainer.Step();
  const at::Tensor added = at::full({70}, 3.0).to(device).set_requires_grad(true);
  trainer.optimizer->add_param_group(torch::optim::OptimizerParamGroup({added}));
  added.mul(2).sum().backward();
  trainer.optimizer->step();
  return absl::StrCat(trainer.Everything(), BytesOnHost(added));
}

}  // namespace optshard::testing

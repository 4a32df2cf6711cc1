// Jobs of optimizers whose parameters are on a device. What they end with is the same on CPUs.
#ifndef OPTSHARD_TESTS_CLIENT_DEVICE_JOBS_H_
#define OPTSHARD_TESTS_CLIENT_DEVICE_JOBS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "client/sharded_optimizer_options.h"

namespace optshard::testing {

// A rank's part of a job with some parameters, one of which has no gradient in step 2.
class DeviceTrainer {
 public:
  DeviceTrainer(ShardedOptimizerOptions given, c10::Device device,
                at::ScalarType type = at::kFloat);

  void Make(const RuleOptions& rule);
  void Step();

  // The bytes of all parameters, and of the state of those that are owned.
  std::string Everything() const;

  ShardedOptimizerOptions options;
  std::vector<at::Tensor> parameters;
  std::unique_ptr<ShardedOptimizer> optimizer;

 private:
  int steps_ = 0;
};

struct DeviceWay {
  std::string name;
  int world_size = 2;
  BucketView view = BucketView::kAutomatic;
  at::ScalarType type = at::kFloat;
  bool master_weights = false;
  bool main_gradients = false;
  std::string state_dtype = "float32";
};
std::vector<DeviceWay> DeviceWays();

// Some steps.
std::string TakeSteps(const DeviceWay& way, const ShardedOptimizerOptions& given,
                      c10::Device device);
// State dicts, other learning rates, refreshed parameters and replaced state between steps.
std::string ChangeState(const ShardedOptimizerOptions& options, c10::Device device);
// A checkpoint into `directory` while steps go on, which is then loaded.
std::string SaveAndLoad(const std::string& directory, const ShardedOptimizerOptions& options,
                        c10::Device device);
// A param group that is added between steps.
std::string AddParameters(const ShardedOptimizerOptions& options, c10::Device device);

// Of any device.
std::string BytesOnHost(const at::Tensor& tensor);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_CLIENT_DEVICE_JOBS_H_

// Jobs that save checkpoints themselves.
#ifndef OPTSHARD_TESTS_CLIENT_SAVED_JOBS_H_
#define OPTSHARD_TESTS_CLIENT_SAVED_JOBS_H_

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/posix_file_system.h"
#include "tests/client/tensors.h"

namespace optshard::testing {

struct SavedJob {
  std::string rule = "adam";
  PartitionPolicy policy = PartitionPolicy::kBalanced;
  std::string state_dtype = "float32";
  at::ScalarType type = at::kFloat;
  bool master_weights = false;
};

// One rank's part of a job, whose gradients follow from the step.
class SavedJobTrainer {
 public:
  SavedJobTrainer(const SavedJob& job, ShardedOptimizerOptions options) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{80, 100}, {3}, {4100}, {0, 2}, {}}) {
      parameters_.push_back(
          at::full(shape, 1, at::TensorOptions(job.type)).set_requires_grad(true));
    }
    options.policy = job.policy;
    options.state_dtype = job.state_dtype;
    options.master_weights = job.master_weights;
    options.checkpoint_timeout = absl::Seconds(20);
    optimizer_ = std::make_unique<ShardedOptimizer>(
        parameters_, RuleOptions(job.rule).Set("lr", 0.125), options);
  }

  void StepTo(StepNumber last) {
    while (optimizer_->finished_step() < last) {
      const StepNumber step = optimizer_->finished_step() + 1;
      for (size_t i = 0; i < parameters_.size(); ++i) {
        // Of both signs, and others in each block of 8-bit state.
        parameters_[i].mutable_grad() =
            at::arange(parameters_[i].numel(), parameters_[i].options().requires_grad(false))
                .add(static_cast<int64_t>(step * 5 + i))
                .remainder(257)
                .sub(160)
                .div(64)
                .reshape(parameters_[i].sizes());
      }
      optimizer_->step();
    }
  }

  std::vector<std::string> Values() const {
    std::vector<std::string> values;
    for (const at::Tensor& each : parameters_) values.push_back(BytesOf(each));
    return values;
  }

  ShardedOptimizer& optimizer() { return *optimizer_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
};

inline std::vector<CheckpointEntry> List(const std::string& root) {
  PosixFileSystem files;
  const auto directory = files.OpenDirectory(root);
  EXPECT_TRUE(directory.ok()) << directory.status();
  auto entries = ListCheckpoints(**directory);
  EXPECT_TRUE(entries.ok()) << entries.status();
  return *std::move(entries);
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_CLIENT_SAVED_JOBS_H_

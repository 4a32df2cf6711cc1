// Jobs whose parameters and optimizer state are saved half-way, for others to go on from.
#ifndef OPTSHARD_TESTS_CLIENT_STATE_JOBS_H_
#define OPTSHARD_TESTS_CLIENT_STATE_JOBS_H_

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer.h"
#include "client/sharded_optimizer_options.h"

namespace optshard::testing {

// Starts each rank's part of a job, with options for it.
using RankStarter =
    std::function<std::vector<absl::Status>(const std::function<void(ShardedOptimizerOptions)>&)>;

// Numbers that float32 holds exactly.
inline RuleOptions Momentum() { return RuleOptions("sgd").Set("lr", 0.25).Set("momentum", 0.5); }

constexpr int kStateJobRanks = 3;

struct SavedState {
  std::vector<at::Tensor> values;
  std::vector<std::map<std::string, at::Tensor>> states;
};

struct StateJob {
  RuleOptions rule;
  PartitionPolicy policy;
  int master_bits;  // 0: no masters
  const char* state_dtype;
  const char* publish_dtype = "float32";
};

// Steps `first` to `last`, from what was saved, if anything was. What is saved at the end, by rank.
inline std::vector<SavedState> TrainStateJob(const RankStarter& start, const StateJob& job,
                                             int first, int last,
                                             const std::vector<SavedState>& from) {
  static const std::vector<std::vector<int64_t>> kShapes = {{5, 3}, {3, 1500}, {0}, {}, {2049}};
  static constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kDouble, at::kHalf};
  std::vector<SavedState> saved(kStateJobRanks);
  const std::vector<absl::Status> statuses = start([&](ShardedOptimizerOptions options) {
    options.policy = job.policy;
    options.master_weights = job.master_bits > 0;
    if (job.master_bits > 0) options.master_weight_bits = job.master_bits;
    options.state_dtype = job.state_dtype;
    options.publish_dtype = job.publish_dtype;
    options.buckets = {4096, 1024};  // so that one parameter has several
    std::vector<at::Tensor> parameters;
    for (size_t i = 0; i < 2 * kShapes.size(); ++i) {
      const at::TensorOptions type(kTypes[i % std::size(kTypes)]);
      parameters.push_back(from.empty() ? at::full(kShapes[i / 2], 1, type)
                                        : from[options.rank].values[i].clone());
      parameters.back().set_requires_grad(true);
    }
    ShardedOptimizer optimizer(parameters, job.rule, options);
    for (size_t i = 0; i < parameters.size() && !from.empty(); ++i) {
      optimizer.set_state(parameters[i], from[options.rank].states[i]);
    }
    for (int step = first; step <= last; ++step) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        parameters[i].mutable_grad() =
            at::arange(parameters[i].numel())
                .add(static_cast<int64_t>(7 * step + 3 * options.rank + i))
                .remainder(11)
                .sub(5)
                .div(8)
                .reshape(parameters[i].sizes())
                .to(parameters[i].scalar_type());
      }
      optimizer.step();
    }
    for (const at::Tensor& parameter : parameters) {
      saved[options.rank].values.push_back(parameter.detach().clone());
      saved[options.rank].states.push_back(optimizer.state(parameter));
    }
    optimizer.Close();
  });
  EXPECT_THAT(statuses, ::testing::Each(absl::OkStatus()));
  return saved;
}

// The jobs with every kind of slot.
inline std::vector<StateJob> StateJobs() {
  const RuleOptions momentum = RuleOptions("sgd").Set("lr", 0.25).Set("momentum", 0.5);
  return {
      {RuleOptions("adam").Set("amsgrad", true), PartitionPolicy::kBalanced, 32, "float32"},
      {RuleOptions("nadam"), PartitionPolicy::kGreedy, 24, "bfloat16"},
      {momentum, PartitionPolicy::kReplicated, 0, "bfloat16"},
      {momentum, PartitionPolicy::kBalanced, 0, "float32", "bfloat16"},
      {RuleOptions("sgd").Set("momentum", 0.5).Set("dampening", 0.25), PartitionPolicy::kBalanced,
       0, "float32"},
      {RuleOptions("adafactor"), PartitionPolicy::kGreedy, 24, "bfloat16"},
      {RuleOptions("adafactor"), PartitionPolicy::kReplicated, 0, "float32"},
  };
}

// That two jobs have saved the same bits, of the same types and shapes.
inline void ExpectSameState(const std::vector<SavedState>& actual,
                            const std::vector<SavedState>& expected) {
  for (int rank = 0; rank < kStateJobRanks; ++rank) {
    for (size_t i = 0; i < expected[rank].values.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, ", parameter ", i));
      EXPECT_TRUE(at::equal(actual[rank].values[i], expected[rank].values[i]));
      const auto& slots = expected[rank].states[i];
      ASSERT_EQ(actual[rank].states[i].size(), slots.size());
      for (const auto& [name, tensor] : slots) {
        const at::Tensor& other = actual[rank].states[i].at(name);
        EXPECT_EQ(other.scalar_type(), tensor.scalar_type()) << name;
        EXPECT_TRUE(at::equal(other, tensor)) << name;
      }
    }
  }
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_CLIENT_STATE_JOBS_H_

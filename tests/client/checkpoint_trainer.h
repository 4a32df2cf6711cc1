// A small job that is trained, saved, and loaded from what was saved.
#ifndef OPTSHARD_TESTS_CLIENT_CHECKPOINT_TRAINER_H_
#define OPTSHARD_TESTS_CLIENT_CHECKPOINT_TRAINER_H_

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer.h"
#include "tests/client/state_lines.h"
#include "tests/client/written_checkpoint.h"
#include "tests/testing/client_ranks.h"

namespace optshard::testing {

constexpr int kRanks = 2;

inline RuleOptions Adam() { return RuleOptions("adam").Set("lr", 0.25); }

// What a checkpoint is of, and what it is loaded into.
struct Model {
  std::vector<std::string> names = {"a", "b", "c"};
  std::vector<std::vector<int64_t>> shapes = {{4096}, {3}, {2}};
  at::ScalarType type = at::kFloat;
  size_t first_group = 2;  // so many parameters; 0: there is one group
  RuleOptions rule = Adam();
  std::string state_dtype = "float32";
  bool master_weights = false;
  std::string optimizer = "default";
};

// One rank's part of a job.
class CheckpointTrainer {
 public:
  CheckpointTrainer(const Model& model, ShardedOptimizerOptions options) {
    for (const auto& shape : model.shapes) {
      parameters_.push_back(
          at::full(shape, 1, at::TensorOptions(model.type)).set_requires_grad(true));
    }
    std::vector<torch::optim::OptimizerParamGroup> groups;
    const size_t first = model.first_group == 0 ? parameters_.size() : model.first_group;
    groups.emplace_back(std::vector<at::Tensor>(parameters_.begin(), parameters_.begin() + first));
    if (first < parameters_.size()) {
      groups.emplace_back(std::vector<at::Tensor>(parameters_.begin() + first, parameters_.end()));
    }
    options.policy = PartitionPolicy::kBalanced;
    options.parameter_names = model.names;
    options.state_dtype = model.state_dtype;
    options.master_weights = model.master_weights;
    options.optimizer = model.optimizer;
    optimizer_ = std::make_unique<ShardedOptimizer>(groups, model.rule, options);
  }

  void Step() {
    ++steps_;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const double gradient = 0.5 + 0.125 * static_cast<double>((size_t{5} * steps_ + i) % 7);
      parameters_[i].mutable_grad() =
          at::full(parameters_[i].sizes(), gradient, parameters_[i].options());
    }
    optimizer_->step();
  }
  void StepTo(int last) {
    while (steps_ < last) Step();
  }
  // Which gradients come next.
  void SetSteps(int steps) { steps_ = steps; }

  // Everything that a step depends on.
  std::vector<std::string> State() {
    std::vector<std::string> lines = StateLines(*optimizer_, parameters_);
    lines.push_back(absl::StrCat("step ", optimizer_->finished_step()));
    return lines;
  }

  ShardedOptimizer& optimizer() { return *optimizer_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  int steps_ = 0;
};

// Trains `steps` steps, and writes checkpoints after those in `saved`. The root.
inline std::string Save(const Model& model, const std::vector<int>& saved = {2}, int ranks = kRanks,
                        const std::string& root = NewCheckpointRoot()) {
  std::vector<std::unique_ptr<WrittenCheckpoint>> checkpoints;
  for (size_t i = 0; i < saved.size(); ++i) {
    checkpoints.push_back(std::make_unique<WrittenCheckpoint>(root));
  }
  ExpectAllOk(RunRanks(ranks, [&](const ShardedOptimizerOptions& options) {
    CheckpointTrainer trainer(model, options);
    for (size_t i = 0; i < saved.size(); ++i) {
      trainer.StepTo(saved[i]);
      checkpoints[i]->WriteShare(trainer.optimizer(), trainer.parameters(),
                                 absl::StrCat("rank ", options.rank, ", step ", saved[i]));
    }
    trainer.optimizer().Close();
  }));
  for (const auto& each : checkpoints) each->Commit();
  return root;
}

// What uninterrupted training has after so many steps.
inline std::vector<std::string> StateAfter(int steps) {
  std::vector<std::string> state;
  ExpectAllOk(RunRanks(1, [&](const ShardedOptimizerOptions& options) {
    CheckpointTrainer trainer(Model(), options);
    trainer.StepTo(steps);
    state = trainer.State();
    trainer.optimizer().Close();
  }));
  return state;
}

// On every rank: the call fails like this, nothing changes, and training goes on.
inline void ExpectRefused(const std::string& root, const std::string& name, absl::StatusCode code,
                          const std::vector<std::string>& said, const Model& model = Model()) {
  ExpectAllOk(RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
    CheckpointTrainer trainer(model, options);
    trainer.StepTo(1);
    const std::vector<std::string> before = trainer.State();
    const absl::Status error = ErrorOf([&] { trainer.optimizer().load_checkpoint(root, name); });
    EXPECT_EQ(error.code(), code) << error;
    for (const std::string& each : said) EXPECT_THAT(error.ToString(), ::testing::HasSubstr(each));
    EXPECT_EQ(trainer.State(), before);
    trainer.StepTo(3);
    EXPECT_EQ(trainer.optimizer().finished_step(), 3u);
    trainer.optimizer().Close();
  }));
}

// The file's bytes, changed in place.
inline void Edit(const std::string& path, const std::function<void(std::string&)>& change) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  ASSERT_FALSE(bytes.empty()) << path;
  change(bytes);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_CLIENT_CHECKPOINT_TRAINER_H_

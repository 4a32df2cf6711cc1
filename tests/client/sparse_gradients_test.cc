// The gradients of an Embedding with sparse=True: only their rows are updated.
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/sgd.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer.h"
#include "tests/client/attached_options.h"
#include "tests/client/tensors.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using testing::BytesOf;
using ::testing::Each;
using testing::FakeHub;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunRanks;
using torch::optim::OptimizerParamGroup;

constexpr int64_t kRows = 300;
constexpr int64_t kWidth = 11;

at::Tensor Table() {
  at::Tensor values = at::zeros({kRows, kWidth});
  for (int64_t i = 0; i < values.numel(); ++i) {
    values.mutable_data_ptr<float>()[i] = static_cast<float>(i % 97) / 7;
  }
  return values.set_requires_grad(true);
}

// Some rows several times, as a batch has words, and other rows on other ranks.
at::Tensor Batch(int step, int rank) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < 20; ++i) {
    rows.push_back((i * i * (rank + 3) + int64_t{31} * step) % kRows);
  }
  return at::tensor(rows);
}

void Backward(const at::Tensor& table, const at::Tensor& batch) {
  const at::Tensor rows = at::embedding(table, batch, -1, false, /*sparse=*/true);
  rows.mul(rows).sum().mul(0.01).backward();
}

RuleOptions RuleNamed(const std::string& name) {
  if (name == "sgd with momentum") return RuleOptions("sgd").Set("lr", 0.1).Set("momentum", 0.9);
  return RuleOptions(name).Set("lr", 0.1);
}

// A table and a dense parameter for each of the rules. Bytes of all of them after five steps.
std::string TrainTables(const ShardedOptimizerOptions& options) {
  std::vector<OptimizerParamGroup> groups;
  std::vector<at::Tensor> tables;
  for (const char* const rule : {"sparse_adam", "sgd", "sgd with momentum", "adagrad"}) {
    tables.push_back(Table());
    groups.emplace_back(std::vector<at::Tensor>{tables.back()},
                        std::make_unique<RuleOptions>(RuleNamed(rule)));
  }
  const at::Tensor bias = Parameter({33}, 2);
  groups[1].params().push_back(bias);
  ShardedOptimizer optimizer(groups, RuleNamed("sgd"), options);
  for (int step = 1; step <= 5; ++step) {
    optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
    // One rank has none, and in another step nobody has.
    if (step != 4 && (step != 3 || options.rank != 0)) {
      for (const at::Tensor& table : tables) {
        Backward(table, Batch(step, options.rank));
        Backward(table, Batch(step + 9, options.rank));
        EXPECT_TRUE(table.grad().is_sparse());
      }
    }
    bias.mul(bias).sum().mul(0.01 * (options.rank + 1)).backward();
    optimizer.step();
  }
  std::string bytes = BytesOf(bias);
  for (const at::Tensor& table : tables) absl::StrAppend(&bytes, BytesOf(table));
  return bytes;
}

class SparseGradientsTest : public ::testing::TestWithParam<int> {};

TEST_P(SparseGradientsTest, Step_ShardedInAnyWay_HasTheBitsOfTheUnshardedRun) {
  const int ranks = GetParam();
  const auto train = [&](const std::function<void(ShardedOptimizerOptions&)>& choose,
                         bool one_host) {
    std::vector<std::string> bytes(ranks);
    const auto body = [&](ShardedOptimizerOptions options) {
      options.buckets.max_bytes = 4096;
      options.buckets.pack_below_bytes = 512;
      choose(options);
      bytes[options.rank] = TrainTables(options);
    };
    EXPECT_THAT(one_host ? testing::RunRanksOfOneHost(ranks, body).thrown : RunRanks(ranks, body),
                Each(absl::OkStatus()));
    return bytes;
  };
  const std::vector<std::string> unsharded =
      train([](auto& options) { options.policy = PartitionPolicy::kReplicated; }, false);
  ASSERT_THAT(unsharded, Each(unsharded[0]));
  for (const PartitionPolicy policy : {PartitionPolicy::kGreedy, PartitionPolicy::kBalanced}) {
    for (const bool views : {false, true}) {
      const auto choose = [&](ShardedOptimizerOptions& options) {
        options.policy = policy;
        options.parameters_as_bucket_view = views;
      };
      EXPECT_THAT(train(choose, false), Each(unsharded[0])) << NameOf(policy) << views;
      if (views) {
        EXPECT_THAT(train(choose, true), Each(unsharded[0])) << NameOf(policy) << ", one host";
      }
    }
  }
  testing::NodeRig rig(ranks);
  std::vector<std::string> attached(ranks);
  rig.OnEveryRank([&](Rank rank) { attached[rank] = TrainTables(testing::AttachedTo(rig, rank)); });
  EXPECT_THAT(attached, Each(unsharded[0]));
}

INSTANTIATE_TEST_SUITE_P(Ranks, SparseGradientsTest, ::testing::Values(1, 2, 3));

// Ten steps of ours and of torch's optimizer with the same options.
template <class Torchs, class Options>
void ExpectTorchsSteps(const Options& rule) {
  const std::vector<absl::Status> statuses = RunRanks(1, [&](ShardedOptimizerOptions options) {
    const at::Tensor ours = Table();
    const at::Tensor theirs = Table();
    ShardedOptimizer optimizer({ours}, rule, options);
    Torchs torchs({theirs}, rule);
    for (int step = 1; step <= 10; ++step) {
      optimizer.zero_grad();
      torchs.zero_grad();
      Backward(ours, Batch(step, 0));
      Backward(theirs, Batch(step, 0));
      optimizer.step();
      torchs.step();
    }
    EXPECT_TRUE(ours.allclose(theirs, 1e-6, 1e-6));
    EXPECT_FALSE(ours.allclose(Table(), 1e-3, 1e-3));
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

TEST(SparseGradients, Step_Sgd_IsTorchs) {
  ExpectTorchsSteps<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  ExpectTorchsSteps<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
}

TEST(SparseGradients, Step_Adagrad_IsTorchs) {
  ExpectTorchsSteps<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1));
  ExpectTorchsSteps<torch::optim::Adagrad>(
      torch::optim::AdagradOptions(0.2).lr_decay(0.1).initial_accumulator_value(0.5).eps(1e-3));
}

TEST(SparseGradients, Step_SparseAdam_ChangesItsRowsAndTheirSlotsAlone) {
  for (const bool views : {false, true}) {
    const std::vector<absl::Status> statuses = RunRanks(1, [&](ShardedOptimizerOptions options) {
      options.parameters_as_bucket_view = views;
      const at::Tensor table = Table();
      ShardedOptimizer optimizer({table}, RuleNamed("sparse_adam"), options);
      const auto step = [&](const std::vector<int64_t>& rows) {
        optimizer.zero_grad();
        Backward(table, at::tensor(rows));
        optimizer.step();
      };
      step({7, 120, 7});
      std::map<std::string, at::Tensor> before = optimizer.state(table);
      before["parameter"] = table.detach().clone();
      EXPECT_FALSE(before["parameter"][120].equal(Table().detach()[120]));
      EXPECT_NE(before["exp_avg"][120][1].item<float>(), 0);
      step({7, 299});
      std::map<std::string, at::Tensor> after = optimizer.state(table);
      after["parameter"] = table.detach();
      EXPECT_EQ(after["step"].item<float>(), 2);
      for (const char* const name : {"parameter", "exp_avg", "exp_avg_sq"}) {
        for (int64_t row = 0; row < kRows; ++row) {
          const bool touched = row == 7 || row == 299;
          EXPECT_EQ(after[name][row].equal(before[name][row]), !touched) << name << " " << row;
        }
      }
    });
    EXPECT_THAT(statuses, Each(absl::OkStatus()));
  }
}

TEST(SparseGradients, Step_RuleThatDoesNotTakeThem_SaysWhichDo) {
  const struct {
    RuleOptions rule;
    bool sparse;
    std::vector<std::string> said;
  } cases[] = {
      {RuleOptions("adam"),
       true,
       {"rank 1: parameter \"table\"", "\"adam\"", "adagrad, sgd, sparse_adam", "to_dense()"}},
      {RuleOptions("sparse_adam"), false, {"rank 1: parameter \"table\"", "dense", "sparse=True"}},
      {RuleOptions("sgd").Set("weight_decay", 0.5),
       true,
       {"rank 1: parameter \"table\"", "\"weight_decay\" is 0.5"}},
      {RuleOptions("adagrad").Set("weight_decay", 0.25),
       true,
       {"rank 1: parameter \"table\"", "\"adagrad\"", "\"weight_decay\" is 0.25"}},
  };
  for (const auto& refused : cases) {
    const std::vector<absl::Status> statuses = RunRanks(2, [&](ShardedOptimizerOptions options) {
      options.parameter_names = {"table"};
      const at::Tensor table = Table();
      ShardedOptimizer optimizer({table}, refused.rule, options);
      const auto give = [&](bool sparse) {
        table.mutable_grad().reset();
        if (sparse) {
          Backward(table, Batch(1, options.rank));
        } else {
          table.mul(table).sum().backward();
        }
      };
      if (options.rank == 1) {
        give(refused.sparse);
        try {
          optimizer.step();
          ADD_FAILURE() << "rank 1 stepped";
        } catch (const StatusError& error) {
          EXPECT_EQ(error.status().code(), absl::StatusCode::kInvalidArgument);
          for (const std::string& text : refused.said) EXPECT_THAT(error.what(), HasSubstr(text));
        }
      }
      give(!refused.sparse);
      optimizer.step();
    });
    EXPECT_THAT(statuses, Each(absl::OkStatus()));
  }
}

}  // namespace
}  // namespace optshard

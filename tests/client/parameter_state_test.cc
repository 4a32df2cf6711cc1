// The optimizer state as tensors: read, and replaced.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer.h"
#include "tests/client/state_jobs.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::ExpectAllOk;
using testing::First;
using testing::Gradient;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Momentum;
using testing::Parameter;
using testing::RunRanks;
using Slots = std::map<std::string, at::Tensor>;

TEST(ParameterStateTest, State_AfterTwoSteps_HasCopiesOfTheOwnersSlots) {
  const std::vector<absl::Status> statuses =
      RunRanks(2, [](const ShardedOptimizerOptions& options) {
        const at::Tensor a = Parameter({2, 3}, 1);
        ShardedOptimizer optimizer({a}, Momentum(), options);
        for (int step = 0; step < 2; ++step) {
          a.mutable_grad() = Gradient({2, 3}, 1);
          optimizer.step();
        }
        const Slots slots = optimizer.state(a);
        if (options.rank == 1) {
          EXPECT_THAT(slots, IsEmpty());
        } else {
          EXPECT_EQ(slots.size(), 2u);
          EXPECT_TRUE(at::equal(slots.at("momentum_buffer"), Gradient({2, 3}, 1.5)));
          EXPECT_TRUE(at::equal(slots.at("step"), Gradient({}, 2)));
          slots.at("momentum_buffer").zero_();
          EXPECT_EQ(First(optimizer.state(a).at("momentum_buffer")), 1.5);
        }
        optimizer.Close();
      });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

// Rounded to bfloat16 a single step of 2^-10 from 1 is lost, three are one step of 2^-8.
TEST(ParameterStateTest, Step_OfRoundedReplicas_GoesOnFromTheMaster) {
  const std::vector<absl::Status> statuses = RunRanks(2, [](ShardedOptimizerOptions options) {
    options.publish_dtype = "bfloat16";
    const at::Tensor a = Parameter({2, 3}, 1);
    ShardedOptimizer optimizer({a}, RuleOptions("sgd").Set("lr", 0x1p-10), options);
    for (const float expected : {1.0f, 1.0f, 1 - 0x1p-8f}) {
      a.mutable_grad() = Gradient({2, 3}, 1);
      optimizer.step();
      EXPECT_TRUE(at::equal(a.detach(), at::full({2, 3}, expected)));
    }
    if (options.rank == 0) {
      EXPECT_TRUE(at::equal(optimizer.state(a).at("master"), at::full({2, 3}, 1 - 0x3p-10f)));
    }
    optimizer.Close();
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

// --- What is saved and set goes on as if nothing had been.

TEST(ParameterStateTest, SetState_InAnotherOptimizer_GoesOnWithTheSameBits) {
  const testing::RankStarter start = [](const auto& body) {
    return RunRanks(testing::kStateJobRanks, body);
  };
  for (const testing::StateJob& job : testing::StateJobs()) {
    SCOPED_TRACE(absl::StrCat(job.rule.rule(), ", ", NameOf(job.policy)));
    const auto expected = testing::TrainStateJob(start, job, 1, 5, {});
    const auto half = testing::TrainStateJob(start, job, 1, 2, {});
    testing::ExpectSameState(testing::TrainStateJob(start, job, 3, 5, half), expected);
  }
}

// Values that the codes have come back as they were: those of a block are all its largest one.
TEST(ParameterStateTest, SetState_SlotsInEightBits_AreCodedBlockByBlock) {
  const std::vector<absl::Status> statuses = RunRanks(2, [](ShardedOptimizerOptions options) {
    options.policy = PartitionPolicy::kBalanced;
    options.state_dtype = "int8_dynamic";
    const at::Tensor a = Parameter({150000}, 1);
    ShardedOptimizer optimizer({a}, RuleOptions("adam"), options);
    const int64_t elements = optimizer.state(a).at("exp_avg").numel();
    EXPECT_GT(elements, 65536);
    const at::Tensor block = at::arange(elements).div(256, "floor").to(at::kFloat);
    optimizer.set_state(
        a, {{"exp_avg", block}, {"exp_avg_sq", block.mul(2)}, {"step", Gradient({}, 3)}});
    EXPECT_TRUE(at::equal(optimizer.state(a).at("exp_avg"), block));
    EXPECT_TRUE(at::equal(optimizer.state(a).at("exp_avg_sq"), block.mul(2)));
    optimizer.Close();
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

// The elements that are not finite: the first one, and behind the last one.
std::pair<int64_t, int64_t> Spoiled(const at::Tensor& values) {
  const at::Tensor where = at::isfinite(values).logical_not().nonzero();
  if (where.numel() == 0) return {0, 0};
  const int64_t first = where[0].item<int64_t>();
  EXPECT_EQ(where.size(0), where[-1].item<int64_t>() + 1 - first) << "others are finite";
  return {first, where[-1].item<int64_t>() + 1};
}

// docs/numerics.md, "Slots in 8 bits": the block is lost, and its parameters one step later. Not
// what stands beside it, and it is so whoever owns the block.
TEST(ParameterStateTest, Step_GradientThatIsNotFinite_SpoilsItsBlockAlone) {
  constexpr int64_t kBad = 5000;
  struct Format {
    const char* name;
    int64_t block;
  };
  for (const Format& format :
       {Format{"float32", 1}, Format{"int8_dynamic", 256}, Format{"int8_companded", 32}}) {
    SCOPED_TRACE(format.name);
    const int64_t begin = kBad / format.block * format.block;
    const auto whole_block = std::make_pair(begin, begin + format.block);
    ExpectAllOk(RunRanks(2, [&](ShardedOptimizerOptions options) {
      options.policy = PartitionPolicy::kBalanced;
      options.state_dtype = format.name;
      const at::Tensor a = Parameter({9001}, 1);
      ShardedOptimizer optimizer({a}, RuleOptions("adam"), options);
      a.mutable_grad() = Gradient({9001}, 1);
      if (options.rank == 0) a.grad()[kBad].fill_(std::numeric_limits<float>::infinity());
      optimizer.step();
      EXPECT_EQ(Spoiled(a.detach()), std::make_pair(kBad, kBad + 1));
      for (const OwnedRange& range : optimizer.owner_of(0)) {
        if (range.rank != options.rank) continue;
        const bool owns_it =
            range.offset_elements <= kBad && kBad < range.offset_elements + range.elements;
        for (const char* const slot : {"exp_avg", "exp_avg_sq"}) {
          auto spoiled = Spoiled(optimizer.state(a).at(slot));
          if (owns_it) spoiled.first += range.offset_elements;
          if (owns_it) spoiled.second += range.offset_elements;
          EXPECT_EQ(spoiled, owns_it ? whole_block : std::make_pair(int64_t{0}, int64_t{0}))
              << slot;
        }
      }
      a.mutable_grad() = Gradient({9001}, 1);
      optimizer.step();
      EXPECT_EQ(Spoiled(a.detach()), whole_block);
      optimizer.Close();
    }));
  }
}

TEST(ParameterStateTest, Adafactor_StateHasTorchsShapes_AndTakesNoOthers) {
  const std::vector<absl::Status> statuses =
      RunRanks(1, [](const ShardedOptimizerOptions& options) {
        const at::Tensor matrix = Parameter({2, 3}, 1);
        const at::Tensor vector = Parameter({4}, 1);
        ShardedOptimizer optimizer({matrix, vector}, RuleOptions("adafactor"), options);
        matrix.mutable_grad() = Gradient({2, 3}, 0.5);
        vector.mutable_grad() = Gradient({4}, 0.5);
        optimizer.step();
        Slots slots = optimizer.state(matrix);
        EXPECT_EQ(slots.size(), 3u);
        EXPECT_TRUE(at::equal(slots.at("row_var"), Gradient({2, 1}, 0.25)));
        EXPECT_TRUE(at::equal(slots.at("col_var"), Gradient({1, 3}, 0.25)));
        EXPECT_EQ(optimizer.state(vector).size(), 2u);
        EXPECT_TRUE(at::equal(optimizer.state(vector).at("variance"), Gradient({4}, 0.25)));
        EXPECT_EQ(optimizer.state_bytes(), (2 + 3 + 4) * 4);

        slots["row_var"] = at::arange(1, 3).to(at::kFloat).reshape({2, 1});
        slots["col_var"] = at::arange(3, 6).to(at::kFloat).reshape({1, 3});
        optimizer.set_state(matrix, slots);
        for (const char* const name : {"row_var", "col_var"}) {
          EXPECT_TRUE(at::equal(optimizer.state(matrix).at(name), slots.at(name))) << name;
        }
        slots["col_var"] = at::zeros({3});
        try {
          optimizer.set_state(matrix, slots);
          ADD_FAILURE() << "col_var of another shape was taken";
        } catch (const StatusError& error) {
          EXPECT_THAT(error.what(), HasSubstr("has the shape [3], expected [1, 3]"));
        }
        optimizer.Close();
      });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

TEST(ParameterStateTest, SetState_NumbersOfOtherTypesAndStrides_AreTaken) {
  const std::vector<absl::Status> statuses =
      RunRanks(1, [](const ShardedOptimizerOptions& options) {
        const at::Tensor a = Parameter({2, 3}, 1);
        ShardedOptimizer optimizer({a}, Momentum(), options);
        const at::Tensor buffer = at::arange(6).to(at::kFloat).reshape({3, 2}).t();
        optimizer.set_state(a, {{"momentum_buffer", buffer},
                                {"step", at::full({1}, 7, at::TensorOptions(at::kLong))}});
        buffer.zero_();  // it was copied
        EXPECT_TRUE(at::equal(optimizer.state(a).at("momentum_buffer"),
                              at::arange(6).to(at::kFloat).reshape({3, 2}).t()));
        EXPECT_EQ(First(optimizer.state(a).at("step")), 7);
        optimizer.Close();
      });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

TEST(ParameterStateTest, SetState_WhatDoesNotFit_SaysWhatAndChangesNothing) {
  struct Case {
    const char* what;
    std::function<void(Slots&)> spoil;
    std::vector<std::string> said;
  };
  const Case cases[] = {
      {"missing", [](Slots& slots) { slots.erase("step"); }, {"lacks the slot \"step\""}},
      {"unknown",
       [](Slots& slots) {
         slots["exp_avg"] = at::zeros({2, 3});
       },
       {"has no slot \"exp_avg\"", "momentum_buffer, step"}},
      {"undefined",
       [](Slots& slots) { slots["momentum_buffer"] = at::Tensor(); },
       {"\"momentum_buffer\"", "undefined"}},
      {"sparse",
       [](Slots& slots) {
         slots["momentum_buffer"] = at::zeros({2, 3}).to_sparse();
       },
       {"\"momentum_buffer\"", "Sparse", "expected a dense"}},
      {"another type",
       [](Slots& slots) { slots["momentum_buffer"] = slots["momentum_buffer"].to(at::kDouble); },
       {"\"momentum_buffer\"", "is Double, expected Float"}},
      {"another shape",
       [](Slots& slots) {
         slots["momentum_buffer"] = at::zeros({3, 2});
       },
       {"\"momentum_buffer\"", "has the shape [3, 2], expected [2, 3]"}},
      {"many steps", [](Slots& slots) { slots["step"] = at::zeros({2}); }, {"\"step\"", "[2]"}},
      {"half a step",
       [](Slots& slots) { slots["step"] = at::full({}, 0.5); },
       {"\"step\" of parameter 1 \"b\"", "is 0.5"}},
      {"steps taken back", [](Slots& slots) { slots["step"] = at::full({}, -1); }, {"is -1"}},
  };
  const std::vector<absl::Status> statuses = RunRanks(1, [&](ShardedOptimizerOptions options) {
    options.parameter_names = {"a", "b"};
    const at::Tensor a = Parameter({1}, 1);
    const at::Tensor b = Parameter({2, 3}, 1);
    ShardedOptimizer optimizer({a, b}, Momentum(), options);
    b.mutable_grad() = Gradient({2, 3}, 1);
    optimizer.step();
    const Slots before = optimizer.state(b);
    const auto error_of = [&](const at::Tensor& parameter, const Slots& slots) {
      try {
        optimizer.set_state(parameter, slots);
      } catch (const StatusError& error) {
        EXPECT_EQ(error.status().code(), absl::StatusCode::kInvalidArgument);
        return std::string(error.status().message());
      }
      return std::string();
    };
    for (const Case& each : cases) {
      SCOPED_TRACE(each.what);
      Slots slots = {{"momentum_buffer", Gradient({2, 3}, 9)}, {"step", Gradient({}, 9)}};
      each.spoil(slots);
      const std::string error = error_of(b, slots);
      EXPECT_THAT(error, HasSubstr("parameter 1 \"b\""));
      for (const std::string& text : each.said) EXPECT_THAT(error, HasSubstr(text));
      for (const auto& [name, tensor] : optimizer.state(b)) {
        EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
      }
    }
    EXPECT_THAT(error_of(b.detach(), before), HasSubstr("none of the 2 parameters"));
    optimizer.Close();
    EXPECT_THROW(optimizer.state(b), StatusError);
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

TEST(ParameterStateTest, SetState_OfWhatAnotherRankOwns_IsAnErrorHere) {
  const std::vector<absl::Status> statuses =
      RunRanks(2, [](const ShardedOptimizerOptions& options) {
        const at::Tensor a = Parameter({1}, 1);
        ShardedOptimizer optimizer({a}, Momentum(), options);
        optimizer.set_state(a, optimizer.state(a));
        if (options.rank == 1) {
          try {
            optimizer.set_state(a, {{"step", Gradient({}, 1)}});
            ADD_FAILURE() << "state of another rank was taken";
          } catch (const StatusError& error) {
            EXPECT_THAT(error.what(), AllOf(HasSubstr("INVALID_ARGUMENT"),
                                            HasSubstr("rank 1 owns nothing of parameter 0")));
          }
        }
        optimizer.Close();
      });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

}  // namespace
}  // namespace optshard

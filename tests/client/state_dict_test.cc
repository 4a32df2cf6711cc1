// State dicts as values: their keys, how they are cut and put together, what they are written as.
#include "client/state_dict.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/owner/state_shares.h"
#include "client/replica/parameter_list.h"
#include "client/replica/parameter_owners.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

StateDict Example() {
  StateDict dict;
  dict.state[0] = {{"exp_avg", at::arange(6).to(at::kFloat).reshape({2, 3})},
                   {"step", at::full({}, 3.0F)}};
  dict.state[2] = {{"exp_avg", at::full({4}, 0.5, at::TensorOptions(at::kDouble))}, {"step", 7}};
  dict.param_groups.resize(2);
  dict.param_groups[0].options = {
      {"lr", 0.01}, {"betas", c10::ivalue::Tuple::create({0.9, 0.999})}, {"fused", c10::IValue()}};
  dict.param_groups[0].params = {0, 1};
  dict.param_groups[1].options = {{"amsgrad", true}, {"adjust_lr_fn", "original"}};
  dict.param_groups[1].params = {2};
  return dict;
}

const std::vector<std::string> kNames = {"a", "b", "c"};

TEST(StateDictTest, PickledAndBack_EveryKindOfValue_IsTheSame) {
  const std::vector<char> pickled = torch::jit::pickle_save(ToIValue(Example()));
  const absl::StatusOr<StateDict> back = StateDictFromIValue(torch::jit::pickle_load(pickled));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(DigestLines(*back), DigestLines(Example()));
  EXPECT_THAT(back->param_groups[0].params, ElementsAre(0, 1));
  EXPECT_TRUE(back->param_groups[0].options.at("fused").isNone());
}

TEST(StateDictTest, FromIValue_WhatIsNoStateDict_SaysWhere) {
  const auto error = [](const c10::IValue& value) {
    return std::string(StateDictFromIValue(value).status().message());
  };
  EXPECT_THAT(error(3), HasSubstr("the value is Int"));
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  EXPECT_THAT(error(dict), HasSubstr("\"state\" is not there"));
  c10::impl::GenericDict state(c10::StringType::get(), c10::AnyType::get());
  state.insert("a", 1);
  dict.insert("state", state);
  dict.insert("param_groups", 1);
  EXPECT_THAT(error(dict), HasSubstr("a key of \"state\" is String"));
}

TEST(StateDictTest, KeyedByNameAndBack_IsTheSameDict_InAnyOrder) {
  const absl::StatusOr<NamedStateDict> named = KeyedByName(Example(), kNames);
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_THAT(named->param_groups[0].params, ElementsAre("a", "b"));
  EXPECT_EQ(named->state.at("c").count("step"), 1u);
  NamedStateDict other = *named;
  std::swap(other.param_groups[0].params[0], other.param_groups[0].params[1]);
  const absl::StatusOr<StateDict> back = KeyedByIndex(other, kNames);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(DigestLines(*back), DigestLines(Example()));

  EXPECT_THAT(std::string(KeyedByName(Example(), {"a", "b"}).status().message()),
              HasSubstr("has parameter 2, and there are 2"));
  EXPECT_THAT(std::string(KeyedByIndex(*named, {"a", "b", "d"}).status().message()),
              HasSubstr("has a parameter \"c\""));
  NamedStateDict moved = *named;
  std::swap(moved.param_groups[0].params[1], moved.param_groups[1].params[0]);
  EXPECT_THAT(std::string(KeyedByIndex(moved, kNames).status().message()),
              HasSubstr("param group 0 of the state dict has the parameter \"c\""));
  other.param_groups[1].params.push_back("a");
  EXPECT_THAT(std::string(KeyedByIndex(other, kNames).status().message()),
              HasSubstr("the parameter \"a\" twice"));
}

TEST(StateDictTest, DigestLines_AnyValueChanged_OneLineDiffers) {
  const std::vector<std::string> lines = DigestLines(Example());
  const auto differing = [&](const StateDict& other) {
    std::vector<std::string> names;
    const std::vector<std::string> others = DigestLines(other);
    EXPECT_EQ(others.size(), lines.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      if (lines[i] != others[i]) names.push_back(lines[i].substr(0, lines[i].rfind(' ')));
    }
    return names;
  };
  StateDict other = Example();
  other.state[0]["exp_avg"].toTensor().view(-1)[5].fill_(5.5);
  EXPECT_THAT(differing(other), ElementsAre("state[0][\"exp_avg\"]"));
  other = Example();
  other.state[0]["exp_avg"] = other.state[0]["exp_avg"].toTensor().reshape({3, 2});
  EXPECT_THAT(differing(other), ElementsAre("state[0][\"exp_avg\"]"));
  other = Example();
  other.state[0]["step"] = other.state[0]["step"].toTensor().to(at::kDouble);
  EXPECT_THAT(differing(other), ElementsAre("state[0][\"step\"]"));
  other = Example();
  other.param_groups[0].options["betas"] = c10::ivalue::Tuple::create({0.9, 0.99900000000000011});
  EXPECT_THAT(differing(other), ElementsAre("param_groups[0][\"betas\"]"));
  other = Example();
  other.param_groups[1].params = {1};
  EXPECT_THAT(differing(other), ElementsAre("param_groups[1][\"params\"]"));
}

// --- Shares.

struct Random {
  std::mt19937 engine{3};
  int64_t Below(int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); }
};

ParameterList RandomList(Random& random) {
  std::vector<std::vector<at::Tensor>> groups(1 + random.Below(3));
  static const std::vector<std::vector<int64_t>> kShapes = {{3, 1500}, {},  {0, 2},
                                                            {2049},    {7}, {1024}};
  for (auto& group : groups) {
    for (int64_t i = random.Below(5); i > 0; --i) {
      group.push_back(at::zeros(kShapes[random.Below(kShapes.size())]));
    }
  }
  groups[0].push_back(at::zeros({5000}));
  return *MakeParameterList(groups, {});
}

StateDict RandomDict(Random& random, const ParameterList& list) {
  StateDict dict;
  dict.param_groups.resize(list.space.group_count());
  for (int p = 0; p < list.space.parameter_count(); ++p) {
    dict.param_groups[list.space.group_of(p)].params.push_back(p);
    if (random.Below(4) == 0) continue;
    const at::Tensor& tensor = list.tensors[p];
    dict.state[p] = {{"exp_avg", at::arange(tensor.numel()).reshape(tensor.sizes()).add(p)},
                     {"step", at::full({}, static_cast<double>(p))}};
  }
  for (StateDict::Group& group : dict.param_groups) {
    group.options["lr"] = static_cast<double>(random.Below(10));
  }
  return dict;
}

TEST(StateSharesTest, CutForEveryRank_RandomDicts_HasEachElementWhereItBelongs) {
  Random random;
  for (int round = 0; round < 100; ++round) {
    const ParameterList list = RandomList(random);
    const StateDict whole = RandomDict(random, list);
    const auto world_size = static_cast<int>(1 + random.Below(4));
    for (const PartitionPolicy policy :
         {PartitionPolicy::kGreedy, PartitionPolicy::kBalanced, PartitionPolicy::kReplicated}) {
      SCOPED_TRACE(absl::StrCat("round ", round, ", ", world_size, " ranks, ", NameOf(policy)));
      const ParameterOwners owners = *ParameterOwners::Make(list, world_size, policy);
      std::vector<StateDict> shares;
      int64_t elements = 0;
      for (Rank rank = 0; rank < world_size; ++rank) {
        shares.push_back(*CutShare(whole, owners, rank));
        EXPECT_EQ(shares.back().param_groups.size(), whole.param_groups.size());
        int64_t next = 0;
        for (const StateDict::Group& group : shares.back().param_groups) {
          for (const int64_t index : group.params) EXPECT_EQ(index, next++);
        }
        for (const auto& [index, values] : shares.back().state) {
          const int parameter = ParametersOf(owners, rank)[index];
          const OwnedPart part = *owners.PartOf(parameter, rank);
          const at::Tensor cut = values.at("exp_avg").toTensor();
          const at::Tensor all = whole.state.at(parameter).at("exp_avg").toTensor();
          EXPECT_TRUE(at::equal(cut.reshape(-1),
                                all.reshape(-1).narrow(0, part.offset_elements, cut.numel())));
          EXPECT_EQ(values.at("step").toTensor().item<double>(), parameter);
          elements += cut.numel();
        }
      }
      int64_t expected = 0;
      for (const auto& [index, values] : whole.state) {
        expected += values.at("exp_avg").toTensor().numel();
      }
      EXPECT_EQ(elements,
                policy == PartitionPolicy::kReplicated ? world_size * expected : expected);
    }
  }
}

TEST(StateSharesTest, CutTensors_AreCopies) {
  const ParameterList list = *MakeParameterList({{at::zeros({4096})}}, {});
  const ParameterOwners owners = *ParameterOwners::Make(list, 2, PartitionPolicy::kBalanced);
  StateDict whole;
  whole.param_groups.resize(1);
  whole.param_groups[0].params = {0};
  whole.state[0]["exp_avg"] = at::zeros({4096});
  const StateDict share = *CutShare(whole, owners, 1);
  share.state.at(0).at("exp_avg").toTensor().fill_(1);
  EXPECT_EQ(whole.state[0]["exp_avg"].toTensor().sum().item<float>(), 0);
}

TEST(StateSharesTest, Cut_WhatIsNoWholeDict_SaysWhy) {
  const ParameterList list = *MakeParameterList({{at::zeros({4096}), at::zeros({2})}}, {"a", "b"});
  const ParameterOwners owners = *ParameterOwners::Make(list, 2, PartitionPolicy::kBalanced);
  const auto error = [&](const StateDict& dict, Rank rank) {
    return std::string(CutShare(dict, owners, rank).status().message());
  };
  StateDict whole;
  EXPECT_THAT(error(whole, 0), HasSubstr("has 0 param groups, expected 1"));
  whole.param_groups.resize(1);
  EXPECT_THAT(error(whole, 0), HasSubstr("has 0 parameters, expected 2"));
  whole.param_groups[0].params = {0, 1};
  EXPECT_EQ(error(whole, 0), "");
  EXPECT_THAT(error(whole, 2), HasSubstr("expected a rank from 0 to 1"));
  whole.state[0]["exp_avg"] = at::zeros({2, 2048});
  EXPECT_THAT(error(whole, 0),
              HasSubstr("\"exp_avg\" of parameter 0 \"a\" has the shape [2, 2048]"));
}

}  // namespace
}  // namespace optshard

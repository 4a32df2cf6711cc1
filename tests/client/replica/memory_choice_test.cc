#include "client/replica/memory_choice.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "client/replica/flat_memory.h"
#include "client/replica/replica.h"
#include "client/replica/replica_list.h"
#include "client/status_error.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

at::Tensor Plain() { return at::full({2, 3, 4, 4}, 1.0f); }

MemoryChoice Choose(const at::Tensor& last, BucketView wish,
                    const std::string& attach = "embedded") {
  ShardedOptimizerOptions options;
  options.parameters_as_bucket_view = wish;
  options.attach = attach;
  return ValueOrThrow(
      ChooseMemory(options, ValueOrThrow(MakeParameterList({{Plain(), last}}, {}))));
}

struct Case {
  const char* what;
  at::Tensor parameter;
  const char* said;  // null: it may move
};

std::vector<Case> Cases(std::vector<at::Tensor>& keep) {
  static float foreign[3] = {1, 2, 3};
  keep.push_back(at::full({6}, 1.0f));
  const at::Tensor graph_input = at::full({2, 2}, 1.0f).set_requires_grad(true);
  keep.push_back(graph_input.t().mm(graph_input));
  auto flat = std::make_shared<float>(1.0f);
  return {
      {"its own", Plain().set_requires_grad(true), nullptr},
      {"frozen", Plain(), nullptr},
      {"empty", at::empty({0, 3}), nullptr},
      {"of a former optimizer", FlatTensor(flat.get(), {1}, flat), nullptr},
      {"part of a storage", at::full({6}, 1.0f).slice(0, 2, 5).variable_data(), nullptr},
      {"a view of what lives", keep[0].slice(0, 2, 5), "shares its storage"},
      {"used by a graph", graph_input, "shares its storage"},
      {"foreign memory", at::from_blob(foreign, {3}), "did not allocate"},
      {"channels_last", Plain().contiguous(at::MemoryFormat::ChannelsLast), "not contiguous"},
  };
}

TEST(MemoryChoiceTest, Choose_Automatic_MovesWhatMayMoveAndElseNamesTheParameter) {
  std::vector<at::Tensor> keep;
  for (const Case& each : Cases(keep)) {
    SCOPED_TRACE(each.what);
    const MemoryChoice choice = Choose(each.parameter, BucketView::kAutomatic);
    EXPECT_EQ(choice.flat, each.said == nullptr) << choice.warning;
    EXPECT_TRUE(choice.may_stay);
    if (each.said == nullptr) {
      EXPECT_THAT(choice.warning, IsEmpty());
    } else {
      EXPECT_THAT(choice.warning, HasSubstr("parameter \"parameter_1\""));
      EXPECT_THAT(choice.warning, HasSubstr(each.said));
      EXPECT_THAT(choice.warning, HasSubstr("parameters_as_bucket_view"));
    }
  }
}

TEST(MemoryChoiceTest, Choose_OnOrAttached_MovesAllAndWarns) {
  std::vector<at::Tensor> keep;
  for (const Case& each : Cases(keep)) {
    SCOPED_TRACE(each.what);
    for (const MemoryChoice& choice : {Choose(each.parameter, BucketView::kOn),
                                       Choose(each.parameter, BucketView::kAutomatic, "unix:x")}) {
      EXPECT_TRUE(choice.flat);
      EXPECT_FALSE(choice.may_stay);
      EXPECT_EQ(choice.warning.empty(), each.said == nullptr) << choice.warning;
    }
  }
}

// It holds views of their memory, and so does a snapshot.
TEST(MemoryChoiceTest, Choose_TensorsOfAnOptimizerThatLives_MoveUnlessSomebodyElseSharesThem) {
  const at::Tensor parameter = Plain();
  const ParameterList list = ValueOrThrow(MakeParameterList({{parameter}}, {}));
  ReplicaList replica;
  replica.Add(list, Replica::MakeFlat(list, ValueOrThrow(FlatMemory::Private(list))));
  ThrowIfError(replica.Gather());
  const std::shared_ptr<const ParameterMemory> kept = replica.parameter_memory();
  EXPECT_TRUE(Choose(parameter, BucketView::kAutomatic).flat);
  at::Tensor other = parameter.detach();
  EXPECT_FALSE(Choose(parameter, BucketView::kAutomatic).flat);
  other.reset();
  // It moves, and what is kept of where it was is no other use of it.
  replica.Add(list, Replica::MakeFlat(list, ValueOrThrow(FlatMemory::Private(list))));
  EXPECT_TRUE(Choose(parameter, BucketView::kAutomatic).flat);
}

TEST(MemoryChoiceTest, Choose_Off_LeavesAllWithoutAWord) {
  std::vector<at::Tensor> keep;
  for (const Case& each : Cases(keep)) {
    const MemoryChoice choice = Choose(each.parameter, BucketView::kOff);
    EXPECT_FALSE(choice.flat) << each.what;
    EXPECT_THAT(choice.warning, IsEmpty()) << each.what;
  }
}

TEST(MemoryChoiceTest, Choose_OffThoughAttached_IsRefused) {
  ShardedOptimizerOptions options;
  options.parameters_as_bucket_view = false;
  options.attach = "unix:x";
  const absl::Status refused =
      ChooseMemory(options, ValueOrThrow(MakeParameterList({{Plain()}}, {}))).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("attaching to a shard server needs"));
}

}  // namespace
}  // namespace optshard

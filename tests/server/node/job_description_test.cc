#include "server/node/job_description.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/safetensors.h"
#include "tests/server/node/node_rig.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::NodeRig;
using testing::NodeTrainer;

JobDescription Job(int world_size, std::set<Rank> ranks) {
  JobDescription job;
  job.world_size = world_size;
  job.ranks = std::move(ranks);
  job.threads = 1;
  return job;
}

std::string WriteModel(const std::string& name, std::vector<SafetensorsTensor> tensors) {
  const SafetensorsLayout layout = *LayOutSafetensors(std::move(tensors), {});
  std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream file(path, std::ios::binary);
  file << layout.bytes << std::string(layout.header.data_bytes(), '\0');
  return path;
}

TEST(SpaceOfElements_AnyNumber_IsThatOrALittleMore, AndEveryRankOwnsTheSame) {
  for (const int64_t elements : {int64_t{1}, int64_t{7}, int64_t{1000}, int64_t{80'000'000}}) {
    for (const int world_size : {1, 3, 8}) {
      const ParameterSpace space = *SpaceOfElements(elements, DType::kFloat32, world_size);
      EXPECT_GE(space.total_elements(), elements);
      // Less than a row more of each.
      const auto row = static_cast<int64_t>(std::sqrt(static_cast<double>(elements))) + 1;
      EXPECT_LE(space.total_elements(), elements + row * space.parameter_count());
      EXPECT_TRUE(space.Validate().ok()) << space.Validate();
    }
  }
  const ParameterSpace space = *SpaceOfElements(1'000'000, DType::kFloat32, 3);
  const NodeMemoryNeed need = *NodeMemoryNeedOf(Job(3, {0, 1, 2}), space);
  EXPECT_EQ(need.ranks.at(0).need.slots_bytes, need.ranks.at(2).need.slots_bytes);
  EXPECT_TRUE(absl::IsInvalidArgument(SpaceOfElements(0, DType::kFloat32, 1).status()));
}

TEST(NodeMemoryNeed_OfAdam_IsParametersGradientsAndTwoSlotsOfTheShare, AndASnapshotOfTheShare) {
  constexpr int64_t kElements = 4'000'000;
  const ParameterSpace space = *SpaceOfElements(kElements, DType::kFloat32, 4);
  const NodeMemoryNeed need = *NodeMemoryNeedOf(Job(4, {0, 1, 2, 3}), space);
  ASSERT_EQ(need.ranks.size(), 4u);
  const auto about = [](int64_t bytes, int64_t expected) {
    return bytes >= expected && bytes <= expected + expected / 50;
  };
  for (const auto& [rank, of_rank] : need.ranks) {
    EXPECT_TRUE(about(of_rank.need.parameters_bytes, 4 * kElements));
    EXPECT_TRUE(about(of_rank.need.gradients_bytes, 4 * kElements));
    EXPECT_TRUE(about(of_rank.need.slots_bytes, 2 * kElements)) << of_rank.need.slots_bytes;
    EXPECT_EQ(of_rank.need.reduced_bytes, 0);
    EXPECT_TRUE(about(of_rank.snapshot_bytes, 3 * kElements)) << of_rank.snapshot_bytes;
  }
  EXPECT_TRUE(about(need.total(), 40 * kElements)) << need.total();  // of four ranks
}

TEST(NodeMemoryNeed_RanksOnOtherNodesOrGloo_AddReducedGradients, OfTheShare) {
  const ParameterSpace space = *SpaceOfElements(4'000'000, DType::kFloat32, 4);
  EXPECT_GE(NodeMemoryNeedOf(Job(4, {2, 3}), space)->ranks.at(2).need.reduced_bytes, 4'000'000);
  JobDescription gloo = Job(4, {0, 1, 2, 3});
  gloo.plane = HostPlaneKind::kGloo;
  EXPECT_GE(NodeMemoryNeedOf(gloo, space)->ranks.at(0).need.reduced_bytes, 4'000'000);
  // Of three others over Gloo, of one between two nodes.
  const int64_t over_gloo = NodeMemoryNeedOf(gloo, space)->ranks.at(0).need.message_bytes;
  const int64_t between_nodes =
      NodeMemoryNeedOf(Job(4, {2, 3}), space)->ranks.at(2).need.message_bytes;
  EXPECT_NEAR(static_cast<double>(over_gloo - between_nodes), 8e6, 1e5);
  EXPECT_EQ(NodeMemoryNeedOf(Job(4, {0, 1, 2, 3}), space)->ranks.at(0).need.message_bytes, 0);
  gloo.gradient_mode = GradientMode::kAveraged;
  EXPECT_EQ(NodeMemoryNeedOf(gloo, space)->ranks.at(0).need.reduced_bytes, 0);
}

TEST(NodeMemoryNeed_SharedParameters_AreCounted, Once) {
  const ParameterSpace space = *SpaceOfElements(1'000'000, DType::kFloat32, 2);
  JobDescription job = Job(2, {0, 1});
  job.share_parameters = true;
  const NodeMemoryNeed need = *NodeMemoryNeedOf(job, space);
  EXPECT_GT(need.ranks.at(0).need.parameters_bytes, 4'000'000);
  EXPECT_EQ(need.ranks.at(1).need.parameters_bytes, 0);
}

TEST(NodeMemoryNeed_SixteenBit_HasMastersAndMainGradients, WhereAskedFor) {
  const ParameterSpace space = *SpaceOfElements(1'000'000, DType::kBFloat16, 1);
  JobDescription job = Job(1, {0});
  const MemoryNeed plain = NodeMemoryNeedOf(job, space)->ranks.at(0).need;
  job.state.master_weights = true;
  job.main_gradients = true;
  const MemoryNeed mixed = NodeMemoryNeedOf(job, space)->ranks.at(0).need;
  EXPECT_NEAR(static_cast<double>(mixed.slots_bytes - plain.slots_bytes), 4e6, 1e5);
  EXPECT_NEAR(static_cast<double>(mixed.gradients_bytes - plain.gradients_bytes), 2e6, 1e5);
}

TEST(NodeMemoryNeed_WhatTheJobCannotBe_IsRefused, SayingWhy) {
  const ParameterSpace space = *SpaceOfElements(1000, DType::kFloat32, 2);
  const absl::Status ranks = NodeMemoryNeedOf(Job(2, {1, 2}), space).status();
  EXPECT_THAT(std::string(ranks.message()), AllOf(HasSubstr("1-2"), HasSubstr("has 2")));
  JobDescription job = Job(2, {0, 1});
  job.rule = "adamm";
  EXPECT_THAT(std::string(NodeMemoryNeedOf(job, space).status().message()), HasSubstr("adamm"));
  job = Job(2, {0, 1});
  job.rule = "muon";
  job.policy = PartitionPolicy::kBalanced;
  EXPECT_TRUE(absl::IsInvalidArgument(NodeMemoryNeedOf(job, space).status()));
}

TEST(SpaceOfModel_OfAFile_HasItsFloatingPointTensors, AndNoOthers) {
  const std::string path =
      WriteModel("model.safetensors", {{"fc.weight", TensorType::kF32, {10, 64}},
                                       {"bn.batches", TensorType::kI64, {}},
                                       {"fc.bias", TensorType::kBF16, {10}}});
  const absl::StatusOr<ParameterSpace> space = SpaceOfModel(path);
  ASSERT_TRUE(space.ok()) << space.status();
  ASSERT_EQ(space->parameter_count(), 2);
  EXPECT_EQ(space->parameter(0).name, "fc.weight");
  EXPECT_EQ(space->parameter(0).shape, (std::vector<int64_t>{10, 64}));
  EXPECT_EQ(space->parameter(1).dtype, DType::kBFloat16);
}

TEST(SpaceOfModel_NoModel_IsAnError, NamingTheFile) {
  const std::string none = WriteModel("none.safetensors", {{"mask", TensorType::kU8, {3}}});
  EXPECT_THAT(std::string(SpaceOfModel(none).status().message()), HasSubstr("none.safetensors"));
  const absl::Status absent = SpaceOfModel("/no-such-folder/model.safetensors").status();
  EXPECT_TRUE(absl::IsNotFound(absent)) << absent;
}

// With a limit of just what was predicted the trainers of a real server attach, and with less they
// do not.
TEST(NodeMemoryNeed_OfARealJob_IsTheLeastLimit, ThatItsTrainersAttachWith) {
  constexpr int kRanks = 2;
  // As the description has it: one rule, and buckets as they are by default.
  const auto describable = [](AttachedOwner::Options options) {
    options.spec.buckets = {};
    options.spec.rules.assign(options.spec.rules.size(), {"adam"});
    return options;
  };
  const AttachedOwner::Options trainer =
      describable(NodeTrainer::DefaultOptions("@none", 0, kRanks));
  JobDescription job = Job(kRanks, {0, 1});
  job.threads = trainer.threads;
  job.policy = trainer.spec.policy;
  job.gradient_mode = trainer.spec.gradient_mode;
  job.state = trainer.spec.state;
  const int64_t total = NodeMemoryNeedOf(job, trainer.spec.space)->total();
  const auto attach_all = [&](int64_t limit_bytes) {
    NodeRig::Options options;
    options.world_size = kRanks;
    options.owners.memory_limit_bytes = limit_bytes;
    NodeRig rig(options);
    std::vector<absl::Status> attached(kRanks);
    rig.OnEveryRank([&](Rank rank) {
      AttachedOwner::Options mine = describable(rig.TrainerOptions(rank));
      mine.join_timeout = absl::Seconds(2);
      const auto started = NodeTrainer::Start(mine);
      attached[rank] = started.ok() ? (*started)->StepUntil(2) : started.status();
    });
    const auto failed =
        std::find_if(attached.begin(), attached.end(),
                     [](const absl::Status& each) { return absl::IsResourceExhausted(each); });
    if (failed != attached.end()) return *failed;
    attached[0].Update(attached[1]);
    return attached[0];
  };
  const absl::Status enough = attach_all(total);
  EXPECT_TRUE(enough.ok()) << enough;
  // Names of the job and its nodes may be longer than these, and segments smaller by some pages.
  constexpr int64_t kSlack = kRanks * (NodeMemoryNeed::kRoundingBytes + 4096);
  const absl::Status refused = attach_all(total - kSlack);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("needs "), HasSubstr("the memory limit is ")));
}

}  // namespace
}  // namespace optshard

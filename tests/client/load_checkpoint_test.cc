// Checkpoints that are loaded: which one, and what is taken of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/checkpoint_directory.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "tests/client/attached_options.h"
#include "tests/client/checkpoint_trainer.h"
#include "tests/client/written_checkpoint.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using testing::Adam;
using testing::CheckpointTrainer;
using testing::Edit;
using ::testing::ElementsAre;
using testing::ExpectAllOk;
using testing::ExpectRefused;
using ::testing::HasSubstr;
using testing::kRanks;
using testing::Model;
using testing::RunRanks;
using testing::Save;
using testing::StateAfter;

TEST(LoadCheckpointTest, Newest_GivesStepOptionsAndThisRanksBlob) {
  const std::string root = Save(Model(), {1, 2});
  Model other;
  other.optimizer = "another";
  Save(other, {3}, kRanks, root);
  std::filesystem::create_directories(absl::StrCat(root, "/step-000000000007"));
  ExpectAllOk(RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
    Model model;
    model.rule = Adam().Set("lr", 8.0);
    CheckpointTrainer trainer(model, options);
    EXPECT_EQ(CheckpointDirectory(root, trainer.optimizer().options()).newest(),
              "step-000000000002");
    auto& group = trainer.optimizer().param_groups()[1].options();
    const LoadedCheckpoint loaded = trainer.optimizer().load_checkpoint(root);
    EXPECT_EQ(loaded.name, "step-000000000002");
    EXPECT_EQ(loaded.passed_over, "");
    EXPECT_EQ(loaded.step, 2u);
    EXPECT_EQ(loaded.world_size, kRanks);
    EXPECT_EQ(trainer.optimizer().finished_step(), 2u);
    EXPECT_EQ(trainer.optimizer().blob(), absl::StrCat("rank ", options.rank, ", step 2"));
    EXPECT_EQ(group.get_lr(), 0.25);
    trainer.SetSteps(2);
    trainer.Step();
    EXPECT_EQ(trainer.optimizer().last_step().step, 3u);
    EXPECT_EQ(trainer.State(), StateAfter(3));
    trainer.optimizer().Close();
  }));
}

// Which part of what rank 1 has saved is not as it was.
void DamageFromTheEnd(const std::string& root, const std::string& name, size_t bytes) {
  Edit(absl::StrCat(root, "/", name, "/owner-00001.safetensors"),
       [&](std::string& text) { text[text.size() - bytes] ^= 1; });
}

// Only whoever reads the bytes finds that out: the one in a tensor, the other in a blob.
TEST(LoadCheckpointTest, NewestWithDamageInside_IsPassedOverAndNamed) {
  const std::string root = Save(Model(), {1, 2, 3});
  DamageFromTheEnd(root, "step-000000000003", 200);
  DamageFromTheEnd(root, "step-000000000002", 3);
  const std::vector<std::string> expected = StateAfter(4);
  ExpectAllOk(RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
    CheckpointTrainer trainer(Model(), options);
    const LoadedCheckpoint loaded = trainer.optimizer().load_checkpoint(root);
    EXPECT_EQ(loaded.name, "step-000000000001");
    EXPECT_EQ(loaded.step, 1u);
    for (const char* const said : {"step-000000000003: rank 1: ", "step-000000000002: rank 1: ",
                                   "owner-00001.safetensors", "trainer_blob", "bytes"}) {
      EXPECT_THAT(loaded.passed_over, HasSubstr(said));
    }
    EXPECT_EQ(trainer.optimizer().blob(), absl::StrCat("rank ", options.rank, ", step 1"));
    trainer.SetSteps(1);
    trainer.StepTo(4);
    EXPECT_EQ(trainer.State(), expected);
    trainer.optimizer().Close();
  }));
}

TEST(LoadCheckpointTest, AllWithDamageInside_AreNamedAndNothingChanges) {
  const std::string root = Save(Model(), {1, 2});
  for (const char* const name : {"step-000000000001", "step-000000000002"}) {
    DamageFromTheEnd(root, name, 200);
  }
  ExpectRefused(root, "", absl::StatusCode::kDataLoss,
                {"no checkpoint of job \"optshard\", optimizer \"default\" that can be loaded",
                 "step-000000000001: rank 1", "step-000000000002: rank 1",
                 "owner-00001.safetensors", "bytes"});
}

// The blob of a damaged one, which this rank could read, does not stay.
TEST(LoadCheckpointTest, BlobOfOneThatIsPassedOver_IsForgotten) {
  const std::string root = Save(Model(), {1}, 3);
  Save(Model(), {2}, kRanks, root);
  DamageFromTheEnd(root, "step-000000000002", 3);
  ExpectAllOk(RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
    CheckpointTrainer trainer(Model(), options);
    EXPECT_EQ(trainer.optimizer().load_checkpoint(root).world_size, 3);
    EXPECT_EQ(trainer.optimizer().blob(), "");
    trainer.optimizer().Close();
  }));
}

TEST(LoadCheckpointTest, AtAnotherNumberOfRanks_AllBlobsCanBeHad) {
  const std::string root = Save(Model(), {2}, 3);
  ExpectAllOk(RunRanks(2, [&](const ShardedOptimizerOptions& options) {
    CheckpointTrainer trainer(Model(), options);
    const LoadedCheckpoint loaded = trainer.optimizer().load_checkpoint(root);
    EXPECT_EQ(loaded.world_size, 3);
    EXPECT_EQ(trainer.optimizer().blob(), "");
    EXPECT_THAT(CheckpointDirectory(root, options).blobs(loaded.name),
                ElementsAre("rank 0, step 2", "rank 1, step 2", "rank 2, step 2"));
    trainer.optimizer().Close();
  }));
}

TEST(CheckpointDirectoryTest, Nothing_WhereNoCheckpointIs) {
  const std::string root = testing::NewCheckpointRoot();
  const ShardedOptimizerOptions options;
  EXPECT_EQ(CheckpointDirectory(root, options).newest(), absl::nullopt);
  EXPECT_EQ(CheckpointDirectory(absl::StrCat(root, "/none"), options).newest(), absl::nullopt);
}

TEST(LoadCheckpointTest, ParametersInAnotherOrder_AreFoundByTheirNames) {
  Model other;
  std::swap(other.names[0], other.names[1]);
  std::swap(other.shapes[0], other.shapes[1]);
  const std::string root = Save(Model());
  ExpectAllOk(RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
    CheckpointTrainer trainer(other, options);
    trainer.optimizer().load_checkpoint(root);
    trainer.optimizer().consolidate_state_dict(-1);
    const StateDict dict = trainer.optimizer().state_dict();
    EXPECT_EQ(dict.state.at(1).at("exp_avg").toTensor().numel(), 4096);
    EXPECT_EQ(trainer.optimizer().finished_step(), 2u);
    trainer.optimizer().Close();
  }));
}

// Backwards and forwards, with calls that are skipped in between; embedded and at a server.
TEST(LoadCheckpointTest, WhileAJobTrains_GoesOnFromThereWithTheSameBits) {
  const std::string root = Save(Model(), {2, 4});
  const std::vector<std::string> expected = StateAfter(6);
  const auto body = [&](const ShardedOptimizerOptions& options) {
    CheckpointTrainer trainer(Model(), options);
    trainer.StepTo(3);
    for (const char* const name : {"step-000000000002", "step-000000000004"}) {
      trainer.optimizer().zero_grad();
      trainer.optimizer().step();  // is skipped
      trainer.optimizer().load_checkpoint(root, name);
      trainer.SetSteps(static_cast<int>(trainer.optimizer().finished_step()));
      trainer.optimizer().set_blob("the next one");
      trainer.StepTo(6);
      EXPECT_EQ(trainer.State(), expected);
    }
    trainer.optimizer().Close();
  };
  ExpectAllOk(RunRanks(kRanks, body));
  ExpectAllOk(testing::RunAttached(kRanks, body));
  ExpectAllOk(testing::RunRanksOfOneHost(kRanks, body).thrown);
}

// A trainer that succeeds one which has loaded finds the checkpoint's step and blob.
TEST(LoadCheckpointTest, SuccessorAtAServer_GoesOnAfterTheLoadedStep) {
  const std::string root = Save(Model(), {2, 5});
  testing::NodeRig rig(kRanks);
  rig.OnEveryRank([&](Rank rank) {
    ShardedOptimizerOptions options = testing::AttachedTo(rig, rank);
    options.wait_for_trainers = true;
    auto trainer = std::make_unique<CheckpointTrainer>(Model(), options);
    trainer->optimizer().set_blob("of a step that comes again");
    trainer->StepTo(4);
    trainer->optimizer().load_checkpoint(root, "step-000000000002");
    trainer->optimizer().Close();
    trainer = std::make_unique<CheckpointTrainer>(Model(), options);
    EXPECT_EQ(trainer->optimizer().finished_step(), 2u);
    EXPECT_EQ(trainer->optimizer().blob(), absl::StrCat("rank ", rank, ", step 2"));
    trainer->SetSteps(2);
    trainer->StepTo(5);
    EXPECT_EQ(trainer->State(), StateAfter(5));
  });
}

}  // namespace
}  // namespace optshard

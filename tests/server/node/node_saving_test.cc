// What a shard server's owners know of the step that is to be saved.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/cancellation.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/manifest_json.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "server/shard/saving/shard_save.h"
#include "server/shard/saving/writer_slots.h"
#include "server/shard/snapshot/parameter_memory.h"
#include "server/shard/state/state_access.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/fake_file_system.h"
#include "tests/testing/local_coordinator.h"

namespace optshard {
namespace {

using testing::FakeKeeper;
using testing::NodeRig;
using testing::NodeTrainer;

class NodeSavingTest : public ::testing::Test {
 protected:
  std::unique_ptr<NodeRig> StartServer(std::vector<KeptUnit> units = {}) {
    NodeRig::Options options;
    options.world_size = 1;
    options.owners.coordinator = &coordinator_;
    options.owners.views = &views_;
    options.owners.keeper = &keeper_;
    return std::make_unique<NodeRig>(std::move(options), std::move(units));
  }

  // Saves; `meanwhile` comes between the opening of the snapshot and its copying.
  absl::StatusOr<ShardSave::Written> Save(const std::function<void()>& meanwhile = [] {}) {
    const auto root = files_.OpenDirectory("/");
    const std::string name = CheckpointNameText({++snapshots_, 0});
    absl::Status made = (*root)->CreateDirectory(name);
    if (!made.ok()) return made;
    ShardSave::Options options;
    options.views = &views_;
    options.files = &files_;
    options.writers = &writers_;
    options.cancellation = &cancellation_;
    ShardSave save(options);
    ShardSave::Shard shard;
    shard.snapshot = snapshots_;
    absl::Status prepared = save.Prepare(shard);
    if (!prepared.ok()) return prepared;
    const absl::StatusOr<SnapshotMoment> opened = save.Open(absl::Seconds(20));
    if (!opened.ok()) return opened.status();
    meanwhile();
    absl::Status copied = save.Copy();
    if (!copied.ok()) return copied;
    return save.Write("/", name, [](int64_t, int64_t) {});
  }
  // What a checkpoint says of the first group's learning rate.
  absl::StatusOr<double> SavedRate() {
    const absl::StatusOr<ShardSave::Written> written = Save();
    if (!written.ok()) return written.status();
    return written->description->groups[0].hyperparameters.Number("lr");
  }

  FakeKeeper keeper_;
  LocalCoordinator coordinator_{1};
  ShardViewRegistry views_;
  testing::FakeFileSystem files_;
  WriterSlots writers_{1};
  Cancellation cancellation_;
  SnapshotId snapshots_ = 0;
};

TEST_F(NodeSavingTest, AfterALoad_HyperparametersAreThoseOfTheLoadedStep) {
  const auto server = StartServer();
  const auto trainer = NodeTrainer::Start(server->TrainerOptions(0)).value();
  ASSERT_TRUE(trainer->StepUntil(1).ok());
  StateAccess* const state = trainer->link().state(absl::Seconds(20)).value();
  ASSERT_TRUE(state->BeginStaging(Replacing::kAll).ok());
  std::vector<Hyperparameters> loaded = trainer->hyperparameters();
  loaded[0].Set("lr", 0.125);
  const absl::Status done = trainer->FinishLoading({40, loaded, ""});
  ASSERT_TRUE(done.ok()) << done;
  EXPECT_EQ(SavedRate().value(), 0.125);
}

// With a server that takes over they are known before a trainer has stepped again.
TEST_F(NodeSavingTest, AfterATakeover_HyperparametersAreThoseOfTheLastStep) {
  auto server = StartServer();
  auto trainer = NodeTrainer::Start(server->TrainerOptions(0)).value();
  ASSERT_TRUE(trainer->StepUntil(1).ok());
  trainer->SetLearningRate(0.5);
  ASSERT_TRUE(trainer->StepUntil(3).ok());
  ASSERT_TRUE(trainer->AddGroup().ok());
  server->Die();
  trainer.reset();
  server = StartServer(keeper_.Units());
  trainer = NodeTrainer::Start(server->TrainerOptions(0)).value();
  ASSERT_EQ(trainer->finished(), 3u);
  EXPECT_EQ(SavedRate().value(), 0.5);
}

// Counts the writes of a trainer, which says that it does not write as a habit.
class FakeWrites final : public TrainerWrites {
 public:
  uint64_t count() const override { return count_; }
  bool are_expected() const override { return false; }

  std::atomic<uint64_t> count_{0};
};

class NodeSavingWhileItsTrainerGoesOnTest : public NodeSavingTest {
 protected:
  NodeSavingWhileItsTrainerGoesOnTest() {
    memory_->writes = writes_;
    trainer_->link().KeepParameters(memory_);
    EXPECT_TRUE(trainer_->StepUntil(2).ok());
  }
  void Overwrite() {
    for (int p = 0; p < trainer_->space().parameter_count(); ++p) {
      if (trainer_->space().parameter(p).elements() > 0) trainer_->FlipBit(p);
    }
  }

  const std::unique_ptr<NodeRig> server_ = StartServer();
  std::unique_ptr<NodeTrainer> trainer_ = NodeTrainer::Start(server_->TrainerOptions(0)).value();
  const std::shared_ptr<FakeWrites> writes_ = std::make_shared<FakeWrites>();
  const std::shared_ptr<ParameterMemory> memory_ = std::make_shared<ParameterMemory>();
};

TEST_F(NodeSavingWhileItsTrainerGoesOnTest, AStep_HasWhatItWritesCopiedBefore) {
  const absl::StatusOr<ShardSave::Written> alone = Save();
  ASSERT_TRUE(alone.ok()) << alone.status();
  const absl::StatusOr<ShardSave::Written> beside =
      Save([this] { ASSERT_TRUE(trainer_->StepUntil(3).ok()); });
  ASSERT_TRUE(beside.ok()) << beside.status();
  EXPECT_EQ(ToText(beside->part), ToText(alone->part));
}

TEST_F(NodeSavingWhileItsTrainerGoesOnTest, AWrite_IsFound) {
  const absl::Status found = Save([this] { ++writes_->count_; }).status();
  EXPECT_EQ(found.code(), absl::StatusCode::kFailedPrecondition) << found;
  EXPECT_TRUE(Save().ok());
}

TEST_F(NodeSavingWhileItsTrainerGoesOnTest, AWriteBeforeTheSave_IsInIt) {
  ++writes_->count_;
  EXPECT_TRUE(Save().ok());
}

TEST_F(NodeSavingWhileItsTrainerGoesOnTest, ItMayLeaveAndWrite) {
  const absl::StatusOr<ShardSave::Written> alone = Save();
  ASSERT_TRUE(alone.ok()) << alone.status();
  const absl::StatusOr<ShardSave::Written> beside = Save([this] {
    EXPECT_TRUE(trainer_->link().Stop(absl::Seconds(20)).ok());
    Overwrite();
    ++writes_->count_;
  });
  ASSERT_TRUE(beside.ok()) << beside.status();
  EXPECT_EQ(ToText(beside->part), ToText(alone->part));
}

TEST_F(NodeSavingWhileItsTrainerGoesOnTest, ItMayEndWithoutAWord) {
  EXPECT_TRUE(Save([this] { trainer_.reset(); }).ok());
}

TEST_F(NodeSavingWhileItsTrainerGoesOnTest, OneThatSaysNothingOfItsWrites_MayWriteAtAnyTime) {
  memory_->writes = nullptr;
  trainer_->link().KeepParameters(memory_);
  ASSERT_TRUE(trainer_->StepUntil(3).ok());
  const absl::StatusOr<ShardSave::Written> alone = Save();
  ASSERT_TRUE(alone.ok()) << alone.status();
  const absl::StatusOr<ShardSave::Written> beside = Save([this] { Overwrite(); });
  ASSERT_TRUE(beside.ok()) << beside.status();
  EXPECT_EQ(ToText(beside->part), ToText(alone->part));
}

}  // namespace
}  // namespace optshard

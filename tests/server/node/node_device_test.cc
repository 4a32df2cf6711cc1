// Ranks of a shard server whose parameters are on devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/errors.h"
#include "tests/server/node/kept_server.h"
#include "tests/server/node/node_devices.h"
#include "tests/server/node/node_rig.h"

namespace optshard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kWorldSize = 2;

class NodeDevice : public ::testing::TestWithParam<bool> {
 protected:
  static bool state_on_host() { return GetParam(); }

  std::unique_ptr<NodeRig> StartServer(std::vector<KeptUnit> units = {}) {
    NodeRig::Options options;
    options.world_size = kWorldSize;
    options.owners.keeper = &keeper_;
    options.owners.find_device = [this](const std::string& id) { return server_.Find(id); };
    return std::make_unique<NodeRig>(std::move(options), std::move(units));
  }

  AttachedOwner::Options TrainerOptions(const NodeRig& rig, Rank rank) const {
    AttachedOwner::Options options = rig.TrainerOptions(rank);
    devices_[rank].Use(&options, state_on_host());
    return options;
  }

  // Trainers of all ranks.
  std::vector<std::unique_ptr<NodeTrainer>> StartAll(NodeRig& rig) const {
    std::vector<std::unique_ptr<NodeTrainer>> trainers(kWorldSize);
    rig.OnEveryRank([&](Rank rank) {
      absl::StatusOr<std::unique_ptr<NodeTrainer>> started =
          NodeTrainer::Start(TrainerOptions(rig, rank));
      ASSERT_TRUE(started.ok()) << "rank " << rank << ": " << started.status();
      trainers[rank] = *std::move(started);
    });
    return trainers;
  }

  FakeKeeper keeper_;
  ServerDevices server_{kWorldSize};
  const std::vector<TrainerDeviceOfRank> devices_{TrainerDeviceOfRank(0), TrainerDeviceOfRank(1)};
};

INSTANTIATE_TEST_SUITE_P(Places, NodeDevice, ::testing::Bool(), [](const auto& test) {
  return test.param ? "StateOnTheHost" : "StateOnTheDevice";
});

TEST_P(NodeDevice, Steps_HaveTheBitsOfTheHost) {
  const auto rig = StartServer();
  const auto trainers = StartAll(*rig);
  rig->OnEveryRank([&](Rank rank) {
    NodeTrainer& trainer = *trainers[rank];
    for (int call = 1; call <= 6; ++call) {
      if (call == 3) {
        const absl::StatusOr<StepInfo> skipped = trainer.Skip();
        ASSERT_TRUE(skipped.ok()) << skipped.status();
        EXPECT_TRUE(skipped->skipped);
        continue;
      }
      const absl::Status stepped = trainer.Step().status();
      ASSERT_TRUE(stepped.ok()) << stepped;
      // Once it has the answer, nothing is under way.
      ASSERT_EQ(Differences(trainer, kWorldSize), "") << "after step " << trainer.finished();
    }
    EXPECT_EQ(trainer.VerifyReplicas(), absl::OkStatus());
  });
}

TEST_P(NodeDevice, AddedGroups_AreSteppedToo) {
  const auto rig = StartServer();
  const auto trainers = StartAll(*rig);
  rig->OnEveryRank([&](Rank rank) {
    ASSERT_EQ(trainers[rank]->StepUntil(2), absl::OkStatus());
    ASSERT_EQ(trainers[rank]->AddGroup(), absl::OkStatus());
    ASSERT_EQ(trainers[rank]->StepUntil(4), absl::OkStatus());
    EXPECT_EQ(Differences(*trainers[rank], kWorldSize, {2}), "");
  });
}

TEST_P(NodeDevice, Successor_FindsTheValuesAndTheState) {
  const auto rig = StartServer();
  auto trainers = StartAll(*rig);
  std::vector<StateShare> shares(kWorldSize);
  rig->OnEveryRank([&](Rank rank) {
    ASSERT_EQ(trainers[rank]->StepUntil(3), absl::OkStatus());
    shares[rank] = trainers[rank]->ReadShare();
  });
  trainers.clear();
  trainers = StartAll(*rig);
  rig->OnEveryRank([&](Rank rank) {
    EXPECT_TRUE(trainers[rank]->link().resumes());
    EXPECT_EQ(trainers[rank]->finished(), 3u);
    EXPECT_TRUE(trainers[rank]->ReadShare() == shares[rank]);
    ASSERT_EQ(trainers[rank]->StepUntil(5), absl::OkStatus());
    EXPECT_EQ(Differences(*trainers[rank], kWorldSize), "");
  });
}

// Whose server has gone without a word, with groups that were added.
TEST_P(NodeDevice, NextServer_TakesOverTheMemory) {
  auto first = StartServer();
  auto trainers = StartAll(*first);
  std::vector<StateShare> shares(kWorldSize);
  first->OnEveryRank([&](Rank rank) {
    ASSERT_EQ(trainers[rank]->StepUntil(2), absl::OkStatus());
    ASSERT_EQ(trainers[rank]->AddGroup(), absl::OkStatus());
    ASSERT_EQ(trainers[rank]->StepUntil(3), absl::OkStatus());
    shares[rank] = trainers[rank]->ReadShare();
  });
  trainers.clear();
  first->Die();

  const auto second = StartServer(keeper_.Units());
  trainers = StartAll(*second);
  second->OnEveryRank([&](Rank rank) {
    NodeTrainer& trainer = *trainers[rank];
    EXPECT_TRUE(trainer.link().resumes());
    ASSERT_EQ(trainer.AddGroup(), absl::OkStatus());
    EXPECT_TRUE(trainer.ReadShare() == shares[rank]);
    ASSERT_EQ(trainer.StepUntil(6), absl::OkStatus());
    EXPECT_EQ(Differences(trainer, kWorldSize, {2}), "");
  });
}

// A server of one rank, in a process of its own.
void UseDevices(const MayUpdate& may_update, NodeOwners::Options* options) {
  const auto devices = std::make_shared<ServerDevices>(1);
  devices->SetMayUpdate(may_update);
  options->find_device = [devices](const std::string& id) { return devices->Find(id); };
}

// What it had on its device stays, groups that were added, too.
TEST_P(NodeDevice, ServerThatIsKilled_IsReplacedUnderItsTrainer) {
  KeptServer server([](int, auto*) {}, 1,
                    [](NodeOwners::Options* options) { UseDevices(nullptr, options); });
  AttachedOwner::Options options = NodeTrainer::DefaultOptions(server.address(), 0, 1);
  devices_[0].Use(&options, state_on_host());
  const auto trainer = NodeTrainer::Start(options).value();
  for (int life = 1; life <= 3; ++life) {
    ASSERT_EQ(trainer->StepUntil(2 * life), absl::OkStatus());
    if (life == 2) {
      ASSERT_EQ(trainer->AddGroup(), absl::OkStatus());
    }
    server.Kill();
    const absl::Status away = trainer->Step(absl::Seconds(1)).status();
    EXPECT_TRUE(errors::IsOwnerAway(away)) << away;
    server.Return();
  }
  ASSERT_EQ(trainer->StepUntil(8), absl::OkStatus());
  EXPECT_EQ(Differences(*trainer, 1, {4}), "");
}

// While its device updates: nobody knows any more what is there.
TEST(NodeDeviceTest, ServerThatIsKilledInAStep_LeavesATornOne) {
  const std::shared_ptr<Board> board = Board::Make();
  KeptServer server([](int, auto*) {}, 1,
                    [board](NodeOwners::Options* options) {
                      UseDevices(
                          [board](int) {
                            if (board->stage == 0) return true;
                            board->ready = 1;
                            return false;
                          },
                          options);
                    });
  const TrainerDeviceOfRank device(0);
  AttachedOwner::Options options = NodeTrainer::DefaultOptions(server.address(), 0, 1);
  device.Use(&options);
  const auto trainer = NodeTrainer::Start(options).value();
  ASSERT_EQ(trainer->StepUntil(2), absl::OkStatus());
  board->stage = 1;
  std::thread killer([&] {
    EXPECT_TRUE(Board::Await(board->ready, 1));
    server.Kill();
    board->stage = 0;
    server.Return();
  });
  const absl::Status killed = trainer->Step().status();
  EXPECT_TRUE(errors::IsOwnerAway(killed)) << killed;
  killer.join();
  absl::Status torn;
  EXPECT_TRUE(Await([&] {
    torn = trainer->Step().status();
    return !errors::IsOwnerAway(torn);
  }));
  EXPECT_TRUE(errors::IsTornStep(torn)) << torn;
}

// What the trainer has put on its device before step() is there before its server is asked.
TEST_P(NodeDevice, Step_ComesBehindTheTrainersWork) {
  const auto rig = StartServer();
  const auto trainers = StartAll(*rig);
  const std::string optimizer = TrainerOptions(*rig, 0).optimizer;
  std::atomic<bool> is_done{false};
  std::atomic<bool> was_asked{false};
  int looks = 0;
  FakeDevices devices = devices_[0].devices;
  devices.Enqueue(devices_[0].stream.get(), [&] {
    // Once it is asked, its server waits for the other rank.
    if (rig->owners().WaitsForOthers(optimizer, 0)) was_asked = true;
    is_done = ++looks > 100;
    return is_done.load();
  });
  rig->OnEveryRank([&](Rank rank) {
    if (rank == 1) {
      EXPECT_TRUE(Await([&] { return is_done.load(); }));
    }
    ASSERT_EQ(trainers[rank]->StepUntil(1), absl::OkStatus());
    EXPECT_EQ(Differences(*trainers[rank], kWorldSize), "");
  });
  EXPECT_FALSE(was_asked);
}

TEST_P(NodeDevice, DeviceThatDoesNothing_IsNamedAndTheCallMayBeMadeAgain) {
  const auto rig = StartServer();
  const auto trainers = StartAll(*rig);
  bool works = false;
  FakeDevices devices = devices_[0].devices;
  devices.Enqueue(devices_[0].stream.get(), [&] { return works; });
  const absl::Status late = trainers[0]->Step(absl::Milliseconds(20)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()), AllOf(HasSubstr("rank 0"), HasSubstr("fake:0")));
  works = true;
  rig->OnEveryRank([&](Rank rank) {
    ASSERT_EQ(trainers[rank]->StepUntil(1), absl::OkStatus());
    EXPECT_EQ(Differences(*trainers[rank], kWorldSize), "");
  });
}

TEST_P(NodeDevice, SuccessorInAnotherPlace_IsRefused) {
  const auto rig = StartServer();
  auto trainers = StartAll(*rig);
  trainers.clear();
  AttachedOwner::Options options = TrainerOptions(*rig, 0);
  options.state_on_host = !options.state_on_host;
  const absl::Status refused = NodeTrainer::Start(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("on GPU-0"), HasSubstr("its state in memory of the host")));
}

TEST_P(NodeDevice, DeviceThatTheServerDoesNotSee_IsNamed) {
  const auto rig = StartServer();
  AttachedOwner::Options options = TrainerOptions(*rig, 0);
  options.hardware_id = "TPU-3";
  const absl::Status refused = NodeTrainer::Start(options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("rank 0"), HasSubstr("TPU-3")));
}

TEST_P(NodeDevice, ParametersThatAreNotOnTheDevice_AreRefused) {
  const auto rig = StartServer();
  AttachedOwner::Options options = TrainerOptions(*rig, 0);
  MoveTo("cpu", &options.spec);
  const absl::Status refused = NodeTrainer::Start(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is on cpu"));
}

TEST_P(NodeDevice, SharedParameters_AreRefused) {
  const auto rig = StartServer();
  AttachedOwner::Options options = TrainerOptions(*rig, 0);
  options.spec.share_parameters = true;
  const absl::Status refused = NodeTrainer::Start(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("share_parameters"));
}

TEST(NodeDeviceTest, ServerWithoutDevices_SaysSo) {
  NodeRig rig(1);
  const TrainerDeviceOfRank device(0);
  AttachedOwner::Options options = rig.TrainerOptions(0);
  device.Use(&options);
  const absl::Status refused = NodeTrainer::Start(options).status();
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("GPU-0"));
}

TEST(NodeDeviceTest, StateOnTheHostWithoutADevice_IsRefused) {
  NodeRig rig(1);
  AttachedOwner::Options options = rig.TrainerOptions(0);
  options.state_on_host = true;
  const absl::Status refused = NodeTrainer::Start(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("state_on_host"));
}

}  // namespace
}  // namespace optshard::testing

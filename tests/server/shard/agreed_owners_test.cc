// Owners that step at full speed while somebody opens snapshots of all of them.

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/snapshot/agreed_snapshots.h"
#include "server/shard/snapshot/parameter_copies.h"
#include "server/shard/snapshot/parameter_memory.h"
#include "server/shard/state/state_access.h"
#include "tests/server/shard/owner_rig.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(20);

// Bytes by parameter, slot and offset.
using State = std::map<std::tuple<int, std::string, int64_t>, std::string>;

// Reads while steps may write.
State Read(const ShardSnapshot& snapshot) {
  State state;
  for (size_t i = 0; i < snapshot.parts().size(); ++i) {
    const ShardSnapshot::Part& part = snapshot.parts()[i];
    std::string& bytes = state[{part.parameter, part.slot, part.offset_elements}];
    const auto number = static_cast<int>(i);
    ShardSnapshot::PartState before{};
    do {
      before = snapshot.state(number);
      bytes.assign(snapshot.Read(number, 0, part.elements).data, part.bytes());
    } while (snapshot.state(number) != before);
    EXPECT_NE(before, ShardSnapshot::PartState::kLost);
  }
  return state;
}

std::shared_ptr<AgreedSnapshots> SnapshotsOf(OwnerRig& rig, Rank rank) {
  return rig.owner(rank).view().agreed_snapshots().value();
}

class NoWrites final : public TrainerWrites {
 public:
  uint64_t count() const override { return 0; }
  bool are_expected() const override { return false; }
};

enum class Kind { kMessages, kReachable, kDevices, kOffloaded };

struct Job {
  Kind kind = Kind::kMessages;
  int steps = 60;
  int ranks = 3;

  std::unique_ptr<OwnerRig> Start() const {
    OwnerRig::Options options = OwnerRig::MixedOptions(ranks);
    options.reachable = kind == Kind::kReachable;
    options.on_devices = kind == Kind::kDevices || kind == Kind::kOffloaded;
    options.state_on_host = kind == Kind::kOffloaded;
    auto rig = std::make_unique<OwnerRig>(options);
    for (const absl::Status& started : rig->Start()) EXPECT_TRUE(started.ok()) << started;
    rig->GiveGradients(1);
    rig->TellParameters(std::make_shared<NoWrites>());
    return rig;
  }

  // What the rank does for its step number `step`.
  static void Step(OwnerRig& rig, Rank rank, int step) {
    if (step % 5 == 0) {
      StepInput refused = rig.InputOf(rank);
      if (rank == 1) refused.hyperparameters = {};
      EXPECT_FALSE(rig.owner(rank).Step(refused).ok());
    }
    if (step % 7 == 0) {
      const TestReplica& replica = rig.replica(rank);
      const absl::Status verified =
          rig.owner(rank).VerifyReplicas(replica.tensors(), replica.regions(), kLong);
      EXPECT_TRUE(verified.ok()) << verified;
    }
    const absl::StatusOr<StepInfo> stepped = rig.owner(rank).Step(rig.InputOf(rank));
    EXPECT_TRUE(stepped.ok()) << stepped.status();
  }
};

// What a job has that is stopped after each step, by step and rank.
std::vector<std::vector<State>> StatesByStep(const Job& job) {
  const auto rig = job.Start();
  std::vector<std::vector<State>> states(job.steps + 1, std::vector<State>(job.ranks));
  for (int step = 0; step <= job.steps; ++step) {
    rig->OnEveryRank([&](Rank r) {
      if (step > 0) Job::Step(*rig, r, step);
      const SnapshotId id = step + 1;
      EXPECT_TRUE(SnapshotsOf(*rig, r)->Prepare(id, {false, true}).ok());
      states[step][r] = Read(**SnapshotsOf(*rig, r)->Take(id, kLong));
    });
  }
  return states;
}

class AgreedOwners : public ::testing::TestWithParam<Kind> {};

TEST_P(AgreedOwners, SteppingAtFullSpeed_AllOpenAtTheSameStep_WithItsState) {
  Job job;
  job.kind = GetParam();
  const std::vector<std::vector<State>> expected = StatesByStep(job);
  const auto rig = job.Start();
  std::atomic<int> running{job.ranks};
  std::thread steps([&] {
    rig->OnEveryRank([&](Rank r) {
      for (int step = 1; step <= job.steps; ++step) Job::Step(*rig, r, step);
      --running;
    });
  });
  int snapshots = 0;
  int while_stepping = 0;
  SnapshotId id = 1;
  for (; running > 0 || snapshots < 3; ++id) {
    for (Rank r = 0; r < job.ranks; ++r) {
      // Every other one copies the parameters while steps go on.
      ASSERT_TRUE(SnapshotsOf(*rig, r)->Prepare(id, {true, true, id % 2 == 0}).ok());
    }
    std::vector<StepNumber> at(job.ranks);
    rig->OnEveryRank([&](Rank r) {
      const auto snapshot = SnapshotsOf(*rig, r)->Take(id, kLong);
      ASSERT_TRUE(snapshot.ok()) << snapshot.status();
      at[r] = (*snapshot)->step();
      EXPECT_EQ((*snapshot)->KeepParameters(), absl::OkStatus());
      EXPECT_TRUE(Read(**snapshot) == expected[at[r]][r]) << "rank " << r << ", step " << at[r];
    });
    for (const StepNumber step : at) EXPECT_EQ(step, at[0]) << "snapshot " << id;
    for (Rank r = 0; r < job.ranks; ++r) SnapshotsOf(*rig, r)->Forget(id);
    ++snapshots;
    while_stepping += at[0] > 0 && at[0] < static_cast<StepNumber>(job.steps) ? 1 : 0;
  }
  steps.join();
  EXPECT_GT(while_stepping, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, AgreedOwners,
                         ::testing::Values(Kind::kMessages, Kind::kReachable, Kind::kDevices,
                                           Kind::kOffloaded));

TEST(AgreedOwnersTest, ASkippedStep_CarriesTheSnapshotToo) {
  Job job;
  const auto rig = job.Start();
  for (Rank r = 0; r < job.ranks; ++r) {
    ASSERT_TRUE(SnapshotsOf(*rig, r)->Prepare(7, {}).ok());
    for (int p = 0; p < rig->space().parameter_count(); ++p) rig->replica(r).DropGradient(p);
  }
  EXPECT_EQ(SnapshotsOf(*rig, 1)->Open(7, kLong)->step, 0);
  for (const absl::StatusOr<StepInfo>& skipped : rig->Step()) EXPECT_TRUE(skipped->skipped);
  rig->GiveGradients(2);
  for (const absl::StatusOr<StepInfo>& stepped : rig->Step()) EXPECT_EQ(stepped->step, 1);
  for (Rank r = 0; r < job.ranks; ++r) EXPECT_EQ(SnapshotsOf(*rig, r)->Open(7, kLong)->step, 0);
}

TEST(AgreedOwnersTest, ALostRank_EndsWhatWaits) {
  Job job;
  const auto rig = job.Start();
  const std::shared_ptr<AgreedSnapshots> snapshots = SnapshotsOf(*rig, 0);
  ASSERT_TRUE(snapshots->Prepare(7, {}).ok());
  rig->Kill(1);
  rig->OnEveryRank([&](Rank r) {
    if (r == 1) return;
    EXPECT_FALSE(rig->owner(r).Step(rig->InputOf(r)).ok());
  });
  const absl::Status status = snapshots->Open(7, kLong).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

TEST(AgreedOwnersTest, AnOwnerThatHearsOfALoss_EndsWhatWaits) {
  Job job;
  const auto rig = job.Start();
  const std::shared_ptr<AgreedSnapshots> snapshots = SnapshotsOf(*rig, 0);
  ASSERT_TRUE(snapshots->Prepare(7, {}).ok());
  rig->owner(0).AbortPlane(absl::UnavailableError("rank 2 is lost"));
  // Before anything of a step was sent: the engine knows nothing of it.
  EXPECT_FALSE(rig->owner(0).Step(rig->InputOf(0)).ok());
  EXPECT_EQ(snapshots->Open(7, kLong).status(), rig->owner(0).failure());
}

TEST(AgreedOwnersTest, Hyperparameters_AreThoseOfTheSnapshotsStep) {
  Job job;
  const auto rig = job.Start();
  const auto step_with = [&](double lr) {
    rig->OnEveryRank([&](Rank r) {
      StepInput input = rig->InputOf(r);
      std::vector<Hyperparameters> values(input.hyperparameters.begin(),
                                          input.hyperparameters.end());
      values[0].Set("lr", lr);
      input.hyperparameters = values;
      EXPECT_TRUE(rig->owner(r).Step(input).ok());
    });
  };
  step_with(0.25);
  for (Rank r = 0; r < job.ranks; ++r) ASSERT_TRUE(SnapshotsOf(*rig, r)->Prepare(7, {}).ok());
  ASSERT_TRUE(SnapshotsOf(*rig, 1)->Open(7, kLong).ok());
  // The others open while they have the next step's hyperparameters already.
  step_with(0.5);
  for (Rank r = 0; r < job.ranks; ++r) {
    const auto snapshot = SnapshotsOf(*rig, r)->Take(7, kLong);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    EXPECT_EQ((*snapshot)->step(), 1);
    EXPECT_EQ((*snapshot)->hyperparameters()[0].Number("lr"), 0.25) << "rank " << r;
  }
}

TEST(AgreedOwnersTest, AfterALoad_HyperparametersAreThoseOfTheLoadedStep) {
  Job job;
  const auto rig = job.Start();
  rig->OnEveryRank([&](Rank r) {
    const StepInput input = rig->InputOf(r);
    std::vector<Hyperparameters> loaded(input.hyperparameters.begin(), input.hyperparameters.end());
    LoadInput load;
    load.step = 40;
    load.replica = input.replica;
    load.regions = input.regions;
    load.timeout = kLong;
    for (const double rate : {-1.0, 0.125}) {
      ASSERT_EQ((*rig->owner(r).state())->BeginStaging(Replacing::kAll), absl::OkStatus());
      loaded[0].Set("lr", rate);
      load.hyperparameters = loaded;
      const absl::Status done = rig->owner(r).FinishLoading(load);
      EXPECT_EQ(done.code(), rate < 0 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kOk)
          << done;
      // Given back, whatever came of it.
      EXPECT_EQ((*rig->owner(r).state())->staged(), nullptr);
    }
  });
  for (Rank r = 0; r < job.ranks; ++r) {
    ASSERT_TRUE(SnapshotsOf(*rig, r)->Prepare(7, {}).ok());
    const auto snapshot = SnapshotsOf(*rig, r)->Take(7, kLong);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    EXPECT_EQ((*snapshot)->step(), 40);
    EXPECT_EQ((*snapshot)->hyperparameters()[0].Number("lr"), 0.125) << "rank " << r;
    EXPECT_EQ(rig->owner(r).view().Describe().groups[0].hyperparameters.Number("lr"), 0.125);
  }
}

TEST(AgreedOwnersTest, WhatTrainersKeep_IsThatOfTheSnapshotsStep) {
  OwnerRig::Options options = OwnerRig::MixedOptions(2);
  options.owner.blob = [](StepNumber finished) { return absl::StrCat("after ", finished); };
  OwnerRig rig(options);
  for (const absl::Status& started : rig.Start()) EXPECT_TRUE(started.ok()) << started;
  rig.GiveGradients(1);
  for (const auto& stepped : rig.Step()) EXPECT_TRUE(stepped.ok()) << stepped.status();
  SnapshotContents contents;
  contents.blob = true;
  for (const Rank r : {0, 1}) ASSERT_TRUE(SnapshotsOf(rig, r)->Prepare(7, contents).ok());
  ASSERT_TRUE(SnapshotsOf(rig, 1)->Open(7, kLong).ok());
  for (const auto& stepped : rig.Step()) EXPECT_TRUE(stepped.ok()) << stepped.status();
  for (const Rank r : {0, 1}) EXPECT_EQ((*SnapshotsOf(rig, r)->Take(7, kLong))->blob(), "after 1");
  ASSERT_TRUE(SnapshotsOf(rig, 0)->Prepare(8, {}).ok());
  EXPECT_EQ((*SnapshotsOf(rig, 0)->Take(8, kLong))->blob(), "") << "nobody asked for it";
}

TEST(AgreedOwnersTest, ASkippedStep_IsSaidBeforeASnapshotCanFollow) {
  Job job;
  job.ranks = 1;
  const auto rig = job.Start();
  for (int p = 0; p < rig->space().parameter_count(); ++p) rig->replica(0).DropGradient(p);
  ASSERT_TRUE(SnapshotsOf(*rig, 0)->Prepare(7, {}).ok());
  StepInput input = rig->InputOf(0);
  int calls = 0;
  input.on_skip = [&](StepNumber finished) {
    ++calls;
    EXPECT_EQ(finished, 0);
    EXPECT_EQ(SnapshotsOf(*rig, 0)->Open(7, absl::ZeroDuration()).status().code(),
              absl::StatusCode::kDeadlineExceeded);
  };
  EXPECT_TRUE(rig->owner(0).Step(input)->skipped);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(SnapshotsOf(*rig, 0)->Open(7, absl::ZeroDuration()).ok());
}

TEST(AgreedOwnersTest, ParametersThatATrainerEdits_AreThoseOfTheSnapshot) {
  Job job;
  const auto rig = job.Start();
  const Slice slice = rig->owner(0).plan().partition.slices[0].front();
  Values values = rig->replica(0).Parameter(slice.parameter);
  values[slice.offset_elements] = 0.5;
  rig->replica(0).SetParameter(slice.parameter, values);
  ASSERT_TRUE(SnapshotsOf(*rig, 0)->Prepare(7, {true, true}).ok());
  const auto snapshot = SnapshotsOf(*rig, 0)->Take(7, kLong);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  const std::string bytes =
      Read(**snapshot).at({slice.parameter, kParameterPart, slice.offset_elements});
  float first = 0;
  std::memcpy(&first, bytes.data(), sizeof(first));
  EXPECT_EQ(first, 0.5f);
}

TEST_P(AgreedOwners, ParametersThatAreSynchronised_AreCopiedBefore) {
  Job job;
  job.kind = GetParam();
  const auto rig = job.Start();
  std::vector<std::unique_ptr<ShardSnapshot>> snapshots(job.ranks);
  rig->OnEveryRank([&](Rank r) {
    ASSERT_TRUE(SnapshotsOf(*rig, r)->Prepare(7, {true, true, true}).ok());
    snapshots[r] = *SnapshotsOf(*rig, r)->Take(7, kLong);
  });
  const Slice slice = rig->owner(1).plan().partition.slices[1].front();
  const Values before = rig->replica(1).Parameter(slice.parameter);
  Values values = before;
  for (double& value : values) value += 1;
  rig->replica(0).SetParameter(slice.parameter, values);
  rig->OnEveryRank([&](Rank r) {
    const TestReplica& replica = rig->replica(r);
    EXPECT_EQ(rig->owner(r).SyncParameters(replica.tensors(), replica.regions(), kLong,
                                           rig->InputOf(r).stream),
              absl::OkStatus());
  });
  EXPECT_NE(rig->replica(1).Parameter(slice.parameter), before);
  EXPECT_EQ(snapshots[1]->KeepParameters(), absl::OkStatus());
  const std::string bytes =
      Read(*snapshots[1]).at({slice.parameter, kParameterPart, slice.offset_elements});
  float first = 0;
  std::memcpy(&first, bytes.data(), sizeof(first));
  EXPECT_EQ(first, static_cast<float>(before[slice.offset_elements]));
}

TEST(AgreedOwnersTest, NoParametersYet_IsSaid) {
  Job job;
  const auto rig = job.Start();
  rig->owner(0).KeepParameters(nullptr);
  const absl::Status refused = SnapshotsOf(*rig, 0)->Prepare(7, {true, true});
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("rank 0 has no parameters yet"));
}

TEST(AgreedOwnersTest, CopiesTakeMoreThanSnapshotsMayHave_IsRefused) {
  Job job;
  const auto rig = job.Start();
  const std::shared_ptr<AgreedSnapshots> snapshots = SnapshotsOf(*rig, 0);
  EXPECT_TRUE(snapshots->Prepare(7, {}).ok());
  const absl::Status refused = snapshots->Prepare(8, {});
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  const ShardDescription full = rig->owner(0).view().Describe();
  EXPECT_GT(full.snapshot_used_bytes, 0);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr(absl::StrCat("of which ", full.snapshot_used_bytes, " are used")));
  snapshots->Forget(7);
  EXPECT_EQ(rig->owner(0).view().Describe().snapshot_used_bytes, 0);
  EXPECT_TRUE(snapshots->Prepare(8, {}).ok());
}

TEST(AgreedOwnersTest, SnapshotMemoryThatIsGiven_IsTheLimit) {
  OwnerRig::Options options = OwnerRig::MixedOptions(1);
  options.owner.snapshot_memory_bytes = 4096;
  OwnerRig rig(options);
  for (const absl::Status& started : rig.Start()) EXPECT_TRUE(started.ok()) << started;
  EXPECT_EQ(rig.owner(0).view().Describe().snapshot_memory_bytes, 4096);
  const absl::Status refused = SnapshotsOf(rig, 0)->Prepare(7, {});
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("may have 4096 bytes"));
  EXPECT_TRUE(SnapshotsOf(rig, 0)->Prepare(7, {false, false}).ok());
}

}  // namespace
}  // namespace optshard::testing

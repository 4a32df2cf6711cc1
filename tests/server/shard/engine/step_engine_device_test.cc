// Steps on a device, over fakes of it and of NCCL: the bits of one process, in the order of
// streams, without waiting for the device.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "common/gradient_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/recovery_point.h"
#include "server/shard/engine/load_input.h"
#include "tests/server/shard/engine/device_cases.h"
#include "tests/server/shard/engine/engine_rig.h"
#include "tests/testing/state_share.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

EngineRig::Options OnDevices(int world_size) {
  EngineRig::Options options;
  options.world_size = world_size;
  options.on_devices = true;
  return options;
}

void ExpectSynchronized(EngineRig& rig) {
  ExpectAllOk(rig.Synchronize());
  EXPECT_THAT(rig.devices().nccl().Misuses(), ::testing::IsEmpty());
}

// A stream's work that waits until it is let through.
class Gate {
 public:
  void CloseOn(const FakeDevices& devices, void* stream) {
    FakeDevices(devices).Enqueue(stream, [open = open_] { return open->load(); });
  }
  void Open() { *open_ = true; }

 private:
  const std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

// By rank, all parameters one after the other.
std::vector<Values> Replicas(EngineRig& rig) {
  std::vector<Values> replicas(rig.options().world_size);
  for (Rank r = 0; r < rig.options().world_size; ++r) {
    for (int p = 0; p < rig.space().parameter_count(); ++p) {
      const Values values = rig.rank(r).replica->Parameter(p);
      replicas[r].insert(replicas[r].end(), values.begin(), values.end());
    }
  }
  return replicas;
}

class StepEngineOnDevicesTest : public ::testing::TestWithParam<DeviceCase> {};

TEST_P(StepEngineOnDevicesTest, Steps_EqualOneProcessToTheBit) {
  EngineRig rig(OptionsOf(GetParam(), OnDevices(0)));
  for (int step = 1; step <= 3; ++step) {
    GiveSomeGradients(rig);
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
    // After every other step only the device knows that it has ended.
    rig.devices().devices().RunWhatCanRun();
    if (step % 2 == 0) continue;
    ExpectSynchronized(rig);
    ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(All, StepEngineOnDevicesTest, AllDeviceCases(), NameOfCase);

// Of a parameter that is read in several windows, too, and from within a block of codes on.
TEST(StepEngineOnDevices, StateOfEightBitsAndOtherTypes_EqualsOneProcess) {
  for (const EngineRig::Options& options : EveryState(OnDevices(2))) {
    EngineRig rig(options);
    ExpectAllOk(rig.SyncParameters());
    for (int step = 1; step <= 3; ++step) {
      rig.GiveAllGradients();
      ExpectAllOk(rig.Step());
      rig.StepOracleAlong();
      ExpectSynchronized(rig);
      ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
    }
    const int p = static_cast<int>(options.space.groups()[0].parameters.size()) - 1;
    const Values& whole = rig.oracle().Slot(p, 0);
    const auto owner = absl::c_find_if(rig.shape()->slices(0),
                                       [p](const Slice& slice) { return slice.parameter == p; });
    const Rank rank = owner == rig.shape()->slices(0).end() ? 1 : 0;
    for (const auto& [offset, elements] :
         {std::pair<int64_t, int64_t>(1, 3), {1000, 3000}, {300, 99000}, {99999, 1}}) {
      Values read(elements);
      ASSERT_TRUE(rig.rank(rank).store->TryRead(p, 0, offset, absl::MakeSpan(read))->has_value());
      const auto first = whole.begin() + offset;
      EXPECT_EQ(BitDifference({first, first + elements}, read), "") << offset;
    }
  }
}

TEST(StepEngineOnDevices, SyncParameters_GivesAllTheFirstRanksValues) {
  EngineRig rig(OnDevices(3));
  const Values first = rig.rank(0).replica->Parameter(0);
  rig.rank(2).replica->SetParameter(0, Values(first.size(), 7));
  ExpectAllOk(rig.SyncParameters());
  EXPECT_EQ(rig.rank(2).replica->Parameter(0), first);
}

// Parameters that travel in place and packed, gradients that are reduced and averaged ones.
std::vector<EngineRig::Options> OfEveryKind(int world_size) {
  std::vector<EngineRig::Options> all;
  for (const Placement placement : {Placement::kFlatRegions, Placement::kScattered}) {
    for (const GradientMode mode : {GradientMode::kReduce, GradientMode::kAveraged}) {
      all.push_back(OnDevices(world_size));
      all.back().placements = {placement};
      all.back().gradient_mode = mode;
    }
  }
  return all;
}

// The device does nothing before the gate opens, and Step returns all the same; nothing in it is
// what makes a host wait.
TEST(StepEngineOnDevices, Step_WaitsForNothingOnTheDevice) {
  for (const EngineRig::Options& options : OfEveryKind(3)) {
    EngineRig rig(options);
    rig.GiveAllGradients();
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
    ExpectSynchronized(rig);

    Gate gate;
    for (Rank r = 0; r < 3; ++r) gate.CloseOn(rig.devices().devices(), rig.rank(r).stream.get());
    rig.GiveAllGradients();
    const std::vector<Values> before = Replicas(rig);
    rig.OnEveryRank([&](Rank r) {
      const int64_t synchronisations = rig.devices().devices().HostSynchronisations();
      const StepEngine::Result result = rig.StepOf(r);
      EXPECT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(rig.devices().devices().HostSynchronisations(), synchronisations);
    });
    rig.StepOracleAlong();
    rig.devices().devices().RunWhatCanRun();
    EXPECT_EQ(Replicas(rig), before);
    for (Rank r = 0; r < 3; ++r) {
      EXPECT_EQ(rig.rank(r).engine->finished(), 2);
      EXPECT_EQ(rig.rank(r).store->ledger().progress().finished, 1);
      EXPECT_EQ(rig.rank(r).store->ledger().progress().outcome, StepOutcome::kTorn);
    }
    gate.Open();
    ExpectSynchronized(rig);
    EXPECT_EQ(rig.DifferenceToOracle(), "");
    for (Rank r = 0; r < 3; ++r) {
      EXPECT_EQ(rig.rank(r).store->ledger().progress().finished, 2);
      EXPECT_EQ(rig.rank(r).store->ledger().progress().outcome, StepOutcome::kIdle);
    }
  }
}

// What the trainer puts on its stream before a step is done before it, and what it puts there
// afterwards finds the parameters of the step.
TEST(StepEngineOnDevices, TrainersStream_IsBeforeAndBehindTheStep) {
  for (const EngineRig::Options& options : OfEveryKind(2)) {
    SCOPED_TRACE(NameOf(options.placements[0]));
    EngineRig rig(options);
    FakeDevices devices = rig.devices().devices();
    rig.GiveAllGradients();
    // Until the streams run there are other gradients.
    std::vector<std::vector<Values>> gradients(2);
    Gate gate;
    for (Rank r = 0; r < 2; ++r) {
      TestReplica& replica = *rig.rank(r).replica;
      for (int p = 0; p < rig.space().parameter_count(); ++p) {
        gradients[r].push_back(replica.Gradient(p));
        replica.SetGradient(p, Values(gradients[r][p].size(), 1000));
      }
      gate.CloseOn(devices, rig.rank(r).stream.get());
      devices.Enqueue(rig.rank(r).stream.get(), [&, r] {
        for (int p = 0; p < rig.space().parameter_count(); ++p) {
          rig.rank(r).replica->SetGradient(p, gradients[r][p]);
        }
        return true;
      });
    }
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
    std::vector<std::vector<Values>> seen(2);
    for (Rank r = 0; r < 2; ++r) {
      devices.Enqueue(rig.rank(r).stream.get(), [&, r] {
        for (int p = 0; p < rig.space().parameter_count(); ++p) {
          seen[r].push_back(rig.rank(r).replica->Parameter(p));
          // As the next backward does.
          rig.rank(r).replica->SetGradient(p, Values(gradients[r][p].size(), 1000));
        }
        return true;
      });
    }
    gate.Open();
    ExpectSynchronized(rig);
    EXPECT_EQ(rig.DifferenceToOracle(), "");
    for (Rank r = 0; r < 2; ++r) {
      ASSERT_EQ(seen[r].size(), rig.space().parameter_count());
      for (int p = 0; p < rig.space().parameter_count(); ++p) {
        EXPECT_EQ(BitDifference(rig.oracle().Parameter(p), seen[r][p]), "") << "parameter " << p;
      }
    }
  }
}

void ExpectIsUpdated(EngineRig& rig, Rank rank, const BucketSpan& span) {
  const Values actual = rig.rank(rank).replica->Parameter(span.parameter);
  const Values& expected = rig.oracle().Parameter(span.parameter);
  const auto begin = span.parameter_offset_elements;
  for (int64_t i = begin; i < begin + span.elements; ++i) {
    ASSERT_EQ(actual[i], expected[i]) << "element " << i << " of parameter " << span.parameter;
  }
}

// The first bucket of a rank is with the others while its second one has not been updated.
TEST(StepEngineOnDevices, Bucket_IsPublishedWhileTheNextOneIsUpdated) {
  std::atomic<bool> all_may_update{false};
  EngineRig::Options options = OnDevices(2);
  options.may_update = [&](Rank) {
    return [&](int start) { return start == 0 || all_may_update; };
  };
  EngineRig rig(options);
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  rig.devices().devices().RunWhatCanRun();
  const Bucket& first = rig.buckets()[0];
  ExpectIsUpdated(rig, 1 - first.owner, first.spans[0]);
  EXPECT_NE(rig.DifferenceToOracle(), "");
  all_may_update = true;
  ExpectSynchronized(rig);
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

// An owner updates its first bucket when that is reduced, while the gradients of later ones are not
// on their way.
TEST(StepEngineOnDevices, Bucket_IsUpdatedWhileOthersAreReduced) {
  EngineRig rig(OnDevices(2));
  rig.GiveAllGradients();
  const Bucket& first = rig.buckets()[0];
  const BucketSpan& span = first.spans[0];
  rig.devices().nccl().LetThrough(1 - first.owner, 1);
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  rig.devices().devices().RunWhatCanRun();
  ExpectIsUpdated(rig, first.owner, span);
  EXPECT_NE(rig.DifferenceToOracle(), "");
  rig.devices().nccl().LetThrough(1 - first.owner, 1000);
  ExpectSynchronized(rig);
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

// Whoever reads while the step is under way gets what it leaves.
TEST(StepEngineOnDevices, StateThatIsReadWhileAStepIsUnderWay_IsThatOfTheStep) {
  EngineRig rig(OnDevices(1));
  rig.GiveAllGradients();
  Gate gate;
  std::atomic<int> looks{0};
  rig.devices().devices().Enqueue(rig.rank(0).stream.get(), [&] { return ++looks > 0; });
  gate.CloseOn(rig.devices().devices(), rig.rank(0).stream.get());
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  const Values& expected = rig.oracle().Slot(0, 0);
  Values read(expected.size());
  std::thread reader([&] {
    EXPECT_EQ(*rig.rank(0).store->TryRead(0, 0, 0, absl::MakeSpan(read)), StepNumber{1});
  });
  while (looks == 0) std::this_thread::yield();
  gate.Open();
  reader.join();
  EXPECT_EQ(BitDifference(expected, read), "");
}

// Its memory is not to be used, whatever was done there before.
TEST(StepEngineOnDevices, DeviceThatFailsBetweenSteps_LeavesNoState) {
  EngineRig rig(OnDevices(1));
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  ExpectSynchronized(rig);
  rig.devices().devices().Fail(absl::DataLossError("an uncorrectable ECC error"));
  const StepEngine::Result result = rig.Step()[0];
  EXPECT_TRUE(absl::IsDataLoss(result.status)) << result.status;
  EXPECT_EQ(result.outcome, StepOutcome::kTorn);
  EXPECT_EQ(rig.rank(0).store->ledger().progress().outcome, StepOutcome::kTorn);
}

TEST(StepEngineOnDevices, DeviceThatFailsAfterTheStep_TearsItInTheNextCall) {
  EngineRig rig(OnDevices(2));
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  ExpectSynchronized(rig);
  ExpectAllOk(rig.Step());
  const absl::Status broken = absl::InternalError("an illegal memory access");
  rig.devices().devices().Fail(broken);
  for (const StepEngine::Result& result : rig.Step()) {
    EXPECT_FALSE(result.status.ok());
    EXPECT_EQ(result.outcome, StepOutcome::kTorn) << result.status;
  }
  std::vector<absl::optional<KeptState>> kept;
  for (Rank r = 0; r < 2; ++r) {
    EXPECT_EQ(rig.rank(r).engine->finished(), 1);
    EXPECT_EQ(rig.rank(r).store->ledger().progress().finished, 1);
    kept.push_back(KeptState{1, rig.rank(r).store->ledger().progress()});
  }
  EXPECT_TRUE(errors::IsTornStep(FindRecoveryPoint(kept).status()));
}

// It has enqueued its step, and its device never takes part.
TEST(StepEngineOnDevices, RankThatHangsInAStep_IsNamedAndTheStepIsTorn) {
  EngineRig::Options options = OnDevices(2);
  options.timeout = absl::Seconds(2);
  EngineRig rig(options);
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  ExpectSynchronized(rig);
  rig.devices().nccl().Hang(1);
  ExpectAllOk(rig.Step());
  std::vector<StepEngine::Result> results(2);
  rig.OnEveryRank([&](Rank r) {
    if (r == 0) results[r] = rig.rank(r).engine->Synchronize(absl::Milliseconds(200));
  });
  EXPECT_EQ(results[0].outcome, StepOutcome::kTorn);
  EXPECT_EQ(errors::RanksOf(results[0].status), std::vector<Rank>{1}) << results[0].status;
  EXPECT_EQ(rig.rank(0).engine->finished(), 1);
}

// A rank that is lost before a step costs nothing: the step before it is done everywhere, since all
// have waited for it before they voted.
TEST(StepEngineOnDevices, RankThatIsLostBetweenSteps_TearsNothing) {
  EngineRig rig(OnDevices(3));
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  rig.devices().devices().RunWhatCanRun();  // nobody has been told
  rig.devices().hosts().Kill(2);
  std::vector<StepEngine::Result> results(3);
  rig.OnEveryRank([&](Rank r) {
    if (r < 2) results[r] = rig.StepOf(r);
  });
  for (Rank r = 0; r < 2; ++r) {
    EXPECT_EQ(results[r].outcome, StepOutcome::kNotApplied) << results[r].status;
    EXPECT_EQ(errors::RanksOf(results[r].status), std::vector<Rank>{2}) << results[r].status;
    EXPECT_EQ(rig.rank(r).store->ledger().progress().finished, 1);
    EXPECT_EQ(rig.rank(r).store->ledger().progress().outcome, StepOutcome::kIdle);
  }
}

// Nothing of the step under way is looked at any more.
TEST(StepEngineOnDevices, RankThatIsLostWhenAStepIsRefused_IsTheNextStepsError) {
  EngineRig::Options options = OnDevices(3);
  options.placements = {Placement::kScattered};
  EngineRig rig(options);
  rig.GiveAllGradients();
  rig.rank(1).hyperparameters[0].Set("lr", 0.5);
  // It votes and tells its hyperparameters.
  FakeHub& hosts = rig.devices().hosts();
  hosts.KillAt(2, hosts.OperationsStarted(2) + 2);
  rig.Step();
  std::vector<StepEngine::Result> results(3);
  rig.OnEveryRank([&](Rank r) {
    if (r < 2) results[r] = rig.StepOf(r);
  });
  for (Rank r = 0; r < 2; ++r) {
    EXPECT_EQ(results[r].outcome, StepOutcome::kNotApplied) << results[r].status;
    EXPECT_EQ(errors::RanksOf(results[r].status), std::vector<Rank>{2}) << results[r].status;
  }
}

// By one more admission.
ParameterSpace WithAddedGroup(const ParameterSpace& space) {
  std::vector<GroupSpec> groups = space.groups();
  groups.push_back(MixedSpace().groups()[0]);
  groups.back().admission = space.admission_count();
  for (ParameterSpec& parameter : groups.back().parameters) parameter.name += ".added";
  return ParameterSpace(groups);
}

TEST(StepEngineOnDevices, NextGeneration_WaitsForTheStepThatIsUnderWay) {
  EngineRig rig(OnDevices(1));
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  EXPECT_EQ(rig.BuildInVain(0, WithAddedGroup(rig.space())), absl::OkStatus());
  EXPECT_EQ(rig.rank(0).store->ledger().progress().finished, 1);
  EXPECT_EQ(rig.rank(0).store->ledger().progress().outcome, StepOutcome::kIdle);
}

// Readers of the former generation's store get nothing that the next one writes.
TEST(StepEngineOnDevices, NextGeneration_GoesOnInPlaceAndTheFormerStoreIsNotReadAnyMore) {
  EngineRig rig(OnDevices(1));
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  const std::shared_ptr<ShardStore> former = rig.rank(0).generation->store();
  Values read(1);
  ASSERT_TRUE(former->TryRead(0, 0, 0, absl::MakeSpan(read))->has_value());
  ASSERT_NO_FATAL_FAILURE(rig.Grow(WithAddedGroup(rig.space())));
  EXPECT_FALSE(former->TryRead(0, 0, 0, absl::MakeSpan(read))->has_value());
  ExpectAllOk(rig.SyncParameters());
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  ExpectSynchronized(rig);
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

TEST(StepEngineOnDevices, StepThatIsRefused_ChangesNothingAndTheNextOneIsMade) {
  EngineRig rig(OnDevices(2));
  const std::vector<Values> before = Replicas(rig);
  rig.GiveAllGradients();
  rig.rank(1).hyperparameters[0].Set("lr", 0.5);
  // Gradients are still read when it returns: what writes to them is behind that.
  rig.devices().nccl().LetThrough(0, 0);
  for (const StepEngine::Result& result : rig.Step()) {
    EXPECT_TRUE(result.refused) << result.status;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("lr"));
  }
  std::atomic<bool> has_written{false};
  FakeDevices devices = rig.devices().devices();
  devices.Enqueue(rig.rank(0).stream.get(), [&] { return has_written = true; });
  devices.RunWhatCanRun();
  EXPECT_FALSE(has_written);
  rig.devices().nccl().LetThrough(0, 1000);
  devices.RunWhatCanRun();
  EXPECT_TRUE(has_written);
  ExpectSynchronized(rig);
  EXPECT_EQ(Replicas(rig), before);
  rig.rank(1).hyperparameters = rig.rank(0).hyperparameters;
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  ExpectSynchronized(rig);
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

// What a rank's stream still has to write is compared, and is written before what is loaded.
TEST(StepEngineOnDevices, CallsBetweenSteps_AreBehindTheTrainersStream) {
  EngineRig rig(OnDevices(2));
  FakeDevices devices = rig.devices().devices();
  const Values first = rig.rank(0).replica->Parameter(0);
  const auto write_late = [&](Rank r) {
    // Its turn comes after all that is enqueued without an order.
    auto looks = std::make_shared<int>(0);
    devices.Enqueue(rig.rank(r).stream.get(), [&rig, r, first, looks] {
      if (++*looks < 20) return false;
      rig.rank(r).replica->SetParameter(0, Values(first.size(), 7));
      return true;
    });
  };
  rig.OnEveryRank([&](Rank r) {
    if (r == 1) write_late(r);
    const StepEngine::Result compared = rig.rank(r).engine->VerifyReplicas(
        rig.rank(r).replica->tensors(), rig.rank(r).replica->regions(), absl::Seconds(20),
        rig.rank(r).stream.get());
    EXPECT_TRUE(compared.refused) << compared.status;
    EXPECT_THAT(std::string(compared.status.message()), HasSubstr("conv.weight"));
  });
  rig.rank(1).replica->SetParameter(0, first);
  rig.OnEveryRank([&](Rank r) {
    ShardState& state = rig.rank(r).generation->state();
    const StateShare share =
        ReadShare(state, rig.shape()->spec(), r, rig.rank(r).replica->tensors());
    ASSERT_EQ(StageShare(state, share), absl::OkStatus());
    write_late(r);
    LoadInput load;
    load.hyperparameters = rig.rank(r).hyperparameters;
    load.replica = rig.rank(r).replica->tensors();
    load.regions = rig.rank(r).replica->regions();
    load.timeout = absl::Seconds(20);
    load.stream = rig.rank(r).stream.get();
    const StepEngine::Result loaded = rig.rank(r).engine->FinishLoading(load, state.staged());
    EXPECT_EQ(loaded.status, absl::OkStatus());
  });
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

// What the trainer has just put there, also where nobody has to be sent it.
TEST(StepEngineOnDevices, MastersOfOneRank_AreTakenBehindTheTrainersStream) {
  EngineRig::Options options = OnDevices(1);
  options.space = MixedDTypeSpace();  // the first parameter is bfloat16
  options.state.master_weights = true;
  EngineRig rig(options);
  const Values values(rig.rank(0).replica->Parameter(0).size(), 7);
  auto looks = std::make_shared<int>(0);
  FakeDevices(rig.devices().devices()).Enqueue(rig.rank(0).stream.get(), [&, looks] {
    if (++*looks < 20) return false;
    rig.rank(0).replica->SetParameter(0, values);
    return true;
  });
  ExpectAllOk(rig.SyncParameters());
  Values masters(values.size());
  ASSERT_TRUE(
      rig.rank(0).store->TryRead(0, ShardStore::kMaster, 0, absl::MakeSpan(masters))->has_value());
  EXPECT_EQ(masters, values);
}

TEST(StepEngineOnDevices, SparseGradient_IsRefusedByAllAndStepsGoOn) {
  EngineRig rig(OnDevices(2));
  rig.GiveAllGradients();
  rig.MakeSparse(0, [](Rank, int64_t) { return true; });
  for (const StepEngine::Result& result : rig.Step()) {
    EXPECT_TRUE(result.refused);
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("the gradient of parameter 0 \"conv.weight\" is sparse"));
  }
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  ExpectSynchronized(rig);
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

absl::Status CreateStatus(EngineRig& rig, const std::string& rule) {
  OptimizerSpec spec = rig.shape()->spec();
  for (GroupRule& group : spec.rules) group.name = rule;
  absl::StatusOr<std::vector<GroupUpdate>> groups = ValidateGroups(spec);
  EXPECT_TRUE(groups.ok()) << groups.status();
  StepEngine::Options options;
  options.shape = GenerationShape::Make(spec, rig.plan());
  options.groups = std::make_shared<const std::vector<GroupUpdate>>(*std::move(groups));
  options.store = rig.rank(0).store;
  options.device = rig.rank(0).device.get();
  options.make_executor = MakeFakeDeviceExecutor(rig.devices().devices(), rig.rank(0).device, {});
  return StepEngine::Create(options).status();
}

TEST(StepEngineOnDevices, RuleThatHasNoKernels_IsRefusedAtTheStart) {
  EngineRig rig(OnDevices(1));
  const WithoutKernels without_kernels("lion");
  const absl::Status refused = CreateStatus(rig, "lion");
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("param group 0"));
}

}  // namespace
}  // namespace optshard::testing

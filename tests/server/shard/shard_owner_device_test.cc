// Shard owners whose parameters and state are on devices, over fakes: between two calls the last
// step may still be under way there.

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/generation_shape.h"
#include "common/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_owner.h"
#include "server/shard/snapshot/agreed_snapshots.h"
#include "server/shard/snapshot/parameter_copies.h"
#include "server/shard/state/shard_ledger.h"
#include "server/shard/state/shard_memory.h"
#include "server/shard/state/shard_store.h"
#include "server/update/group_update.h"
#include "tests/server/shard/owner_rig.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

OwnerRig::Options OnDevices(int world_size) {
  OwnerRig::Options options = OwnerRig::MixedOptions(world_size);
  options.on_devices = true;
  return options;
}

void ExpectOk(const std::vector<absl::Status>& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    EXPECT_TRUE(results[r].ok()) << r << ": " << results[r];
  }
}

void ExpectOk(const std::vector<absl::StatusOr<StepInfo>>& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    EXPECT_TRUE(results[r].ok()) << r << ": " << results[r].status();
  }
}

// Of the rank that owns the beginning of the parameter.
Rank OwnerOf(OwnerRig& rig, int parameter) {
  for (Rank r = 0; r < rig.owner_options(0).spec.world_size; ++r) {
    for (const OwnedSlice& slice : rig.owner(r).view().SlicesOf(parameter)) {
      if (slice.offset_elements == 0) return r;
    }
  }
  return -1;
}

// Adam's exp_avg after one step, from the gradients of all ranks.
std::vector<double> ExpAvgOfFirstStep(OwnerRig& rig, int parameter, size_t elements) {
  const int ranks = rig.owner_options(0).spec.world_size;
  std::vector<double> expected(elements);
  for (size_t i = 0; i < elements; ++i) {
    float sum = 0;
    for (Rank r = 0; r < ranks; ++r) {
      sum += static_cast<float>(rig.replica(r).Gradient(parameter)[i]);
    }
    const float average = sum / static_cast<float>(ranks);
    expected[i] = static_cast<float>(1 - 0.9) * average;
  }
  return expected;
}

TEST(ShardOwnerOnDevices, Steps_CanBeLookedIntoWhileTheLastOneIsUnderWay) {
  OwnerRig rig(OnDevices(3));
  ExpectOk(rig.Start());
  rig.GiveGradients(1);
  // The devices' streams stand still until the reader looks: then the step runs.
  std::atomic<bool> open{false};
  for (Rank r = 0; r < 3; ++r) {
    rig.on_devices().devices().Enqueue(rig.InputOf(r).stream, [&] { return open.load(); });
  }
  ExpectOk(rig.Step());
  constexpr int kParameter = 0;
  constexpr size_t kElements = 100;
  const std::vector<double> expected = ExpAvgOfFirstStep(rig, kParameter, kElements);
  const Rank owner = OwnerOf(rig, kParameter);
  ASSERT_GE(owner, 0);
  EXPECT_EQ(rig.owner(owner).view().Describe().progress.finished, 1);
  EXPECT_EQ(rig.owner(owner).view().Describe().progress.outcome, StepOutcome::kIdle);
  std::vector<double> read(kElements);
  open = true;
  const absl::StatusOr<SlotRead> slot =
      rig.owner(owner).view().ReadSlot(kParameter, "exp_avg", 0, absl::MakeSpan(read));
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(slot->step, 1);
  EXPECT_THAT(read, ::testing::Pointwise(::testing::FloatEq(), expected));

  // The same by the thread that steps, and a clean end.
  rig.GiveGradients(2);
  ExpectOk(rig.Step());
  std::vector<double> again(kElements);
  ShardState& state = **rig.owner(owner).state();
  EXPECT_EQ(state.Read(kParameter, 0, 0, absl::MakeSpan(again)), absl::OkStatus());
  EXPECT_NE(again, read);
  ExpectOk(rig.Stop());
}

TEST(ShardOwnerOnDevices, RankThatIsLostOnceTheStepIsDone_TearsNothing) {
  OwnerRig rig(OnDevices(3));
  ExpectOk(rig.Start());
  rig.GiveGradients(1);
  ExpectOk(rig.Step());
  rig.on_devices().devices().RunWhatCanRun();
  rig.Kill(2);
  for (Rank r = 0; r < 2; ++r) EXPECT_TRUE(rig.AwaitAborted(r));
  rig.OnEveryRank([&](Rank r) {
    if (r == 2) return;
    const absl::Status lost = rig.owner(r).Step(rig.InputOf(r)).status();
    EXPECT_TRUE(errors::IsPeerLost(lost)) << lost;
    EXPECT_EQ(errors::RanksOf(lost), std::vector<Rank>{2}) << lost;
    EXPECT_EQ(rig.owner(r).progress().finished, 1);
  });
}

TEST(ShardOwnerOnDevices, RankThatIsLostWhileTheStepIsUnderWay_TearsIt) {
  OwnerRig rig(OnDevices(3));
  ExpectOk(rig.Start());
  rig.GiveGradients(1);
  ExpectOk(rig.Step());
  rig.on_devices().devices().RunWhatCanRun();
  rig.on_devices().nccl().Hang(2);
  ExpectOk(rig.Step());
  rig.Kill(2);
  for (Rank r = 0; r < 2; ++r) EXPECT_TRUE(rig.AwaitAborted(r));
  rig.OnEveryRank([&](Rank r) {
    if (r == 2) return;
    // The trainer has not called since: whoever looks in is not given what streams have left.
    std::vector<double> early(1);
    const int owned = rig.owner(r).view().Slices(0, 1)[0].parameter;
    const int64_t first = rig.owner(r).view().Slices(0, 1)[0].offset_elements;
    EXPECT_FALSE(rig.owner(r).view().ReadSlot(owned, "exp_avg", first, absl::MakeSpan(early)).ok());
    const absl::Status torn = rig.owner(r).Step(rig.InputOf(r)).status();
    EXPECT_TRUE(errors::IsTornStep(torn)) << torn;
    EXPECT_THAT(std::string(torn.message()), HasSubstr("step 2"));
    EXPECT_EQ(rig.owner(r).progress().finished, 1);
    std::vector<double> read(1);
    EXPECT_FALSE(rig.owner(r).view().ReadSlot(0, "exp_avg", 0, absl::MakeSpan(read)).ok());
  });
}

// Whoever takes over the memory of an owner that has stopped finds the last step done.
TEST(ShardOwnerOnDevices, Stop_WaitsForTheStepThatIsUnderWay) {
  OwnerRig rig(OnDevices(1));
  ShardOwner::Options& options = rig.owner_options(0);
  ShardStore::Options store;
  const Plan plan = MakePlan(1, options.spec.space, options.spec.policy, {"node"}).value();
  store.shape = GenerationShape::Make(options.spec, plan);
  store.TakeSlotsOf(ValidateGroups(options.spec).value());
  const ShardMemory memory =
      ShardMemory::OnDevice(ShardStore::BytesFor(store), options.device, "a test's state").value();
  options.memory = {memory};
  ExpectOk(rig.Start());
  rig.GiveGradients(1);
  ExpectOk(rig.Step());
  EXPECT_EQ(ShardLedger::Read(memory.ledger)->progress.outcome, StepOutcome::kTorn);
  ExpectOk(rig.Stop());
  EXPECT_EQ(ShardLedger::Read(memory.ledger)->progress.outcome, StepOutcome::kIdle);
  EXPECT_EQ(ShardLedger::Read(memory.ledger)->progress.finished, 1);
}

// By the thread that steps, while a step is under way: behind it.
TEST(ShardOwnerOnDevices, State_IsWrittenAndReplacedBetweenSteps) {
  OwnerRig rig(OnDevices(1));
  ExpectOk(rig.Start());
  rig.GiveGradients(1);
  ExpectOk(rig.Step());
  ShardState& state = **rig.owner(0).state();
  EXPECT_EQ(state.Write(0, 0, 3, {7}), absl::OkStatus());
  std::vector<double> read(5);
  EXPECT_EQ(state.Read(0, 0, 0, absl::MakeSpan(read)), absl::OkStatus());
  std::vector<double> expected = ExpAvgOfFirstStep(rig, 0, 5);
  expected[3] = 7;
  EXPECT_THAT(read, ::testing::Pointwise(::testing::FloatEq(), expected));

  EXPECT_EQ(state.BeginStaging(Replacing::kState), absl::OkStatus());
  EXPECT_EQ(state.Stage(0, 0, 0, {1, 2, 3, 4, 5}), absl::OkStatus());
  EXPECT_EQ(rig.owner(0).ReplaceState(absl::Seconds(20)), absl::OkStatus());
  EXPECT_EQ(state.Read(0, 0, 0, absl::MakeSpan(read)), absl::OkStatus());
  EXPECT_THAT(read, ::testing::ElementsAre(1, 2, 3, 4, 5));
}

// What lies at the first element of a part, as the snapshot has it.
float FirstOf(const ShardSnapshot& snapshot, int parameter, absl::string_view slot) {
  for (size_t i = 0; i < snapshot.parts().size(); ++i) {
    const ShardSnapshot::Part& part = snapshot.parts()[i];
    if (part.parameter != parameter || part.slot != slot) continue;
    EXPECT_EQ(snapshot.state(static_cast<int>(i)), ShardSnapshot::PartState::kKept);
    float first = 0;
    std::memcpy(&first, snapshot.Read(static_cast<int>(i), 0, 1).data, sizeof(first));
    return first;
  }
  ADD_FAILURE() << "no part";
  return 0;
}

// It is opened while the step is under way, without waiting for it, and has what the step leaves.
// What the trainer and the next step write comes behind the copies.
TEST(ShardOwnerOnDevices, Snapshot_IsOfTheStepThatIsUnderWay) {
  OwnerRig rig(OnDevices(1));
  ExpectOk(rig.Start());
  rig.TellParameters();
  rig.GiveGradients(1);
  FakeDevices devices = rig.on_devices().devices();
  std::atomic<bool> open{false};
  devices.Enqueue(rig.InputOf(0).stream, [&] { return open.load(); });
  const std::shared_ptr<AgreedSnapshots> snapshots = rig.owner(0).view().agreed_snapshots().value();
  ASSERT_EQ(snapshots->Prepare(7, {true, true}), absl::OkStatus());
  ExpectOk(rig.Step());
  const auto snapshot = snapshots->Take(7, absl::Seconds(20)).value();
  EXPECT_EQ(snapshot->step(), 1);
  float written_over = 0;
  devices.Enqueue(rig.InputOf(0).stream, [&] {
    Values values = rig.replica(0).Parameter(0);
    written_over = static_cast<float>(values[0]);
    values[0] = 1000;
    rig.replica(0).SetParameter(0, values);
    return true;
  });
  const std::vector<double> expected = ExpAvgOfFirstStep(rig, 0, 1);
  open = true;
  ExpectOk(rig.Step());
  ExpectOk(rig.Stop());
  snapshot->CopyAhead();  // nothing is left for it to do
  EXPECT_FLOAT_EQ(FirstOf(*snapshot, 0, "exp_avg"), static_cast<float>(expected[0]));
  EXPECT_EQ(FirstOf(*snapshot, 0, kParameterPart), written_over);
  EXPECT_NE(written_over, 0);
}

TEST(ShardOwnerOnDevices, SnapshotOfAStepThatIsTorn_IsLost) {
  OwnerRig rig(OnDevices(2));
  ExpectOk(rig.Start());
  rig.TellParameters();
  rig.GiveGradients(1);
  rig.on_devices().nccl().Hang(1);
  const auto snapshots = rig.owner(0).view().agreed_snapshots().value();
  ASSERT_EQ(snapshots->Prepare(7, {true, true}), absl::OkStatus());
  ExpectOk(rig.Step());
  const auto snapshot = snapshots->Take(7, absl::Seconds(20)).value();
  EXPECT_EQ(snapshot->step(), 1);
  rig.Kill(1);
  EXPECT_TRUE(rig.AwaitAborted(0));
  for (size_t i = 0; i < snapshot->parts().size(); ++i) {
    if (snapshot->parts()[i].slot == "step") continue;
    EXPECT_EQ(snapshot->state(static_cast<int>(i)), ShardSnapshot::PartState::kLost);
  }
}

// Each rank that consolidates opens one of its own.
TEST(ShardOwnerOnDevices, SnapshotsOfOneStep_ShareTheirCopies) {
  OwnerRig rig(OnDevices(1));
  ExpectOk(rig.Start());
  rig.TellParameters();
  rig.GiveGradients(1);
  ExpectOk(rig.Step());
  const ShardView& view = rig.owner(0).view();
  auto first = view.OpenSnapshot(false, absl::Seconds(20));
  ASSERT_TRUE(first.ok()) << first.status();
  const int64_t one = view.Describe().snapshot_used_bytes;
  auto second = view.OpenSnapshot(false, absl::Seconds(20));
  EXPECT_EQ(view.Describe().snapshot_used_bytes, one);
  // Also where there is no memory for one more.
  std::vector<std::unique_ptr<ShardSnapshot>> others;
  while (view.Describe().snapshot_used_bytes + one <= view.Describe().snapshot_memory_bytes) {
    others.push_back(view.OpenSnapshot(true, absl::Seconds(20)).value());
  }
  auto sharing = view.OpenSnapshot(false, absl::Seconds(20));
  ASSERT_TRUE(sharing.ok()) << sharing.status();
  first->reset();
  second->reset();
  others.clear();
  EXPECT_EQ(view.Describe().snapshot_used_bytes, one);
  EXPECT_EQ(FirstOf(**sharing, 0, "exp_avg"), static_cast<float>(ExpAvgOfFirstStep(rig, 0, 1)[0]));
}

TEST(ShardOwnerOnDevices, Snapshot_OfADeviceThatHasFailed_IsRefusedWithTheReason) {
  OwnerRig rig(OnDevices(1));
  ExpectOk(rig.Start());
  rig.on_devices().devices().Fail(absl::DataLossError("an illegal access"));
  EXPECT_TRUE(absl::IsDataLoss((*rig.owner(0).state())->Write(0, 0, 3, {7})));
  const absl::Status refused = rig.owner(0).view().OpenSnapshot(false, absl::Hours(1)).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
}

// What is kept of an earlier step is nobody else's.
TEST(ShardOwnerOnDevices, SnapshotOfALaterStep_WaitsForMemory) {
  OwnerRig rig(OnDevices(1));
  ExpectOk(rig.Start());
  rig.TellParameters();
  const ShardView& view = rig.owner(0).view();
  std::vector<std::unique_ptr<ShardSnapshot>> early;
  early.push_back(view.OpenSnapshot(true, absl::Seconds(20)).value());
  const int64_t one = view.Describe().snapshot_used_bytes;
  while (view.Describe().snapshot_used_bytes + one <= view.Describe().snapshot_memory_bytes) {
    early.push_back(view.OpenSnapshot(true, absl::Seconds(20)).value());
  }
  rig.GiveGradients(1);
  ExpectOk(rig.Step());
  EXPECT_TRUE(absl::IsResourceExhausted(view.OpenSnapshot(true, absl::Seconds(20)).status()));
  const absl::Status refused = view.OpenSnapshot(false, absl::Milliseconds(1)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  early.clear();
  const auto later = view.OpenSnapshot(false, absl::Seconds(20));
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ((*later)->step(), 1);
}

// A model is written without state, which is then not copied either.
TEST(ShardOwnerOnDevices, SnapshotOfParametersAlone_TakesNoMemoryForState) {
  OwnerRig rig(OnDevices(1));
  ExpectOk(rig.Start());
  rig.TellParameters();
  const auto snapshots = rig.owner(0).view().agreed_snapshots().value();
  SnapshotContents contents;
  contents.parameters = true;
  contents.keep_copies = false;
  contents.state = false;
  ASSERT_EQ(snapshots->Prepare(7, contents), absl::OkStatus());
  const int64_t used = rig.owner(0).view().Describe().snapshot_used_bytes;
  const auto snapshot = snapshots->Take(7, absl::Seconds(20)).value();
  EXPECT_EQ(FirstOf(*snapshot, 0, kParameterPart),
            static_cast<float>(rig.replica(0).Parameter(0)[0]));
  ASSERT_EQ(snapshots->Prepare(8, {false}), absl::OkStatus());
  EXPECT_GT(rig.owner(0).view().Describe().snapshot_used_bytes, 2 * used);
}

TEST(ShardOwnerOnDevices, WhatDoesNotFitTheDevice_IsRefusedAtTheStart) {
  OwnerRig rig(OnDevices(1));
  ShardOwner::Options without_executor = rig.owner_options(0);
  without_executor.make_executor = nullptr;
  const absl::Status none = ShardOwner::Start(without_executor).status();
  EXPECT_TRUE(absl::IsInvalidArgument(none)) << none;
  EXPECT_THAT(std::string(none.message()), HasSubstr("cuda:0 needs an executor"));

  ShardOwner::Options on_host = rig.owner_options(0);
  on_host.spec.space = OwnerRig::MixedOptions(1).owner.spec.space;
  const absl::Status other = ShardOwner::Start(on_host).status();
  EXPECT_TRUE(absl::IsInvalidArgument(other)) << other;
  EXPECT_THAT(
      std::string(other.message()),
      HasSubstr("parameter 0 \"conv.weight\" is on cpu; the shard owner steps parameters on "
                "cuda only"));
}

}  // namespace
}  // namespace optshard::testing

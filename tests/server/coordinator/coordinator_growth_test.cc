// Param groups are added while a job works: what the coordinator's members see of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "tests/server/coordinator/group_resumes.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

OptimizerSpec GrownSpec() {
  OptimizerSpec spec = TestJoin(0, 2).spec;
  std::vector<GroupSpec> groups = spec.space.groups();
  ParameterSpec added;
  added.name = "head.weight";
  added.shape = {3};
  groups.push_back({{added}, 1});
  spec.space = ParameterSpace(std::move(groups));
  spec.rules.push_back({"sgd"});
  return spec;
}

class CoordinatorGrowth : public GroupResumes {
 protected:
  void Propose(Rank rank, GrowthPhase phase, uint64_t number = 1) {
    GrowthProposal proposal;
    proposal.number = number;
    proposal.phase = phase;
    proposal.spec = GrownSpec();
    proposal.patience = absl::Seconds(2);
    answers_.erase(rank);
    job_.coordinator_->ProposeGrowth(
        job_.callers_[rank], proposal, absl::Seconds(10),
        [this, rank](const absl::StatusOr<GrowthAnswer>& answer) { answers_[rank] = answer; });
  }
  void Grow() {
    for (const GrowthPhase phase : {GrowthPhase::kCompare, GrowthPhase::kCommit}) {
      for (Rank rank = 0; rank < kRanks; ++rank) Propose(rank, phase);
    }
    for (Rank rank = 0; rank < kRanks; ++rank) {
      ASSERT_EQ(answers_[rank]->status(), absl::OkStatus());
      ASSERT_EQ((*answers_[rank])->verdict, GrowthVerdict::kAgreed);
    }
  }
  absl::Status ErrorOf(Rank rank) {
    return answers_[rank].has_value() ? answers_[rank]->status() : absl::OkStatus();
  }

  std::map<Rank, absl::optional<absl::StatusOr<GrowthAnswer>>> answers_;
};

TEST_F(CoordinatorGrowth, AllCommit_TheGroupIsOfTheNextGenerationAndItsCallersOfBoth) {
  job_.JoinAll();
  Grow();
  EXPECT_EQ(job_.Group().generation, 2u);
  EXPECT_EQ(job_.Group().parameter_count, 3);
  EXPECT_EQ(job_.Group().rules, "adam+sgd");
  EXPECT_EQ(job_.Beat(0).status(), absl::OkStatus());  // has not heard of it
  job_.callers_[0].generation = 2;
  EXPECT_EQ(job_.Beat(0).status(), absl::OkStatus());
  job_.callers_[0].generation = 3;
  EXPECT_TRUE(errors::IsStaleGeneration(job_.Beat(0).status()));
}

TEST_F(CoordinatorGrowth, Comparing_ChangesNothingButClearsTheRendezvous) {
  job_.JoinAll();
  const auto put = [&](const char* value) {
    return job_.coordinator_->PutRendezvous(job_.callers_[0], "shm/0", value);
  };
  ASSERT_EQ(put("first"), absl::OkStatus());
  EXPECT_EQ(put("other").code(), absl::StatusCode::kAlreadyExists);
  for (Rank rank = 0; rank < kRanks; ++rank) Propose(rank, GrowthPhase::kCompare);
  EXPECT_EQ(put("other"), absl::OkStatus());
  EXPECT_EQ(job_.Group().generation, 1u);
  EXPECT_EQ(job_.Group().parameter_count, 2);
}

TEST_F(CoordinatorGrowth, ARankThatDoesNotCome_IsNamedAndTheGroupWorksOn) {
  job_.JoinAll();
  Propose(0, GrowthPhase::kCompare);
  job_.Pass(absl::Seconds(3), {0, 1});
  ASSERT_TRUE(answers_[0].has_value());
  EXPECT_EQ(errors::RanksOf((*answers_[0])->failure), std::vector<Rank>({1}));
  ExpectActive(1, 0);
}

TEST_F(CoordinatorGrowth, OneProposes_TheOthersAreAskedForTheirProgressOnce) {
  job_.JoinAll();
  Propose(0, GrowthPhase::kCompare);
  Propose(0, GrowthPhase::kCompare);  // the attempt before was given up
  EXPECT_EQ(job_.Events(0).size(), 1u);
  const std::vector<MemberEvent> events = job_.Events(1);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].kind, MemberEvent::Kind::kProgressWanted);
  Propose(1, GrowthPhase::kCompare);
  EXPECT_EQ(job_.Events(1).size(), 2u);
}

TEST_F(CoordinatorGrowth, ARankInAStep_IsNamedOnceItsHeartbeatsSaySo) {
  job_.JoinAll();
  job_.progress_[1] = {0, StepOutcome::kInStep};
  Propose(0, GrowthPhase::kCompare);
  job_.Pass(absl::Milliseconds(200), {0, 1});
  ASSERT_TRUE(answers_[0].has_value());
  EXPECT_TRUE((*answers_[0])->others_step);
}

TEST_F(CoordinatorGrowth, ARankIsLostInTheMiddle_ThoseThatWaitAreTold) {
  job_.JoinAll();
  for (Rank rank = 0; rank < kRanks; ++rank) Propose(rank, GrowthPhase::kCompare);
  Propose(0, GrowthPhase::kCommit);
  EXPECT_EQ(ErrorOf(0), absl::OkStatus());
  job_.Kill(1);
  job_.Pass(absl::Milliseconds(400), {0});
  EXPECT_TRUE(errors::IsPeerLost(ErrorOf(0))) << ErrorOf(0);
  Propose(0, GrowthPhase::kCompare, 2);
  EXPECT_TRUE(errors::IsPeerLost(ErrorOf(0)));
  EXPECT_EQ(job_.Group().generation, 1u);
}

TEST_F(CoordinatorGrowth, ARankThatLeavesOrHasLeft_IsNamedAtOnceAndTheGroupStaysActive) {
  job_.JoinAll();
  Propose(0, GrowthPhase::kCompare);
  EXPECT_FALSE(answers_[0].has_value());
  ASSERT_TRUE(job_.coordinator_->Leave(job_.callers_[1], {12, StepOutcome::kIdle}).ok());
  for (const uint64_t number : {1, 2}) {
    ASSERT_TRUE(answers_[0].has_value() && answers_[0]->ok()) << number;
    EXPECT_TRUE(errors::IsPeerLost((*answers_[0])->failure)) << (*answers_[0])->failure;
    EXPECT_EQ(errors::RanksOf((*answers_[0])->failure), std::vector<Rank>({1}));
    Propose(0, GrowthPhase::kCompare, number + 1);
  }
  EXPECT_EQ(job_.Group().state, GroupState::kActive);
}

TEST_F(CoordinatorGrowth, StaleCallers_AreTold) {
  job_.JoinAll();
  Grow();
  Propose(0, GrowthPhase::kCommit);  // a retry that has not heard
  EXPECT_EQ((*answers_[0])->generation, 2u);
  Propose(0, GrowthPhase::kCompare, 2);
  EXPECT_TRUE(errors::IsStaleGeneration(ErrorOf(0))) << ErrorOf(0);
  job_.callers_[0].member.incarnation -= 1;
  Propose(0, GrowthPhase::kCompare, 2);
  EXPECT_TRUE(errors::IsStaleIncarnation(ErrorOf(0))) << ErrorOf(0);
}

TEST_F(CoordinatorGrowth, BeforeAllHaveJoined_NothingCanBeAdded) {
  ASSERT_TRUE(job_.Join(0).ok());
  Propose(0, GrowthPhase::kCompare);
  EXPECT_EQ(ErrorOf(0).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CoordinatorGrowth, TheCoordinatorEnds_SoDoTheWaits) {
  job_.JoinAll();
  Propose(0, GrowthPhase::kCompare);
  job_.coordinator_->Shutdown();
  EXPECT_EQ(ErrorOf(0).code(), absl::StatusCode::kUnavailable);
}

TEST_F(CoordinatorGrowth, TheGroupFormsAnew_OnlyWithTheSpecThatHasGrown) {
  job_.JoinAll();
  Grow();
  job_.Kill(1);
  job_.Pass(absl::Milliseconds(400), {0});
  JoinRequest request = Successor(1, Kept(12, StepOutcome::kIdle, 2));
  const absl::Status refused = job_.Join(request);
  EXPECT_TRUE(errors::IsRanksDisagree(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("param groups were added"));
  for (const Rank rank : {1, 0}) {
    request = Successor(rank, Kept(12, StepOutcome::kIdle, 2));
    request.spec = GrownSpec();
    ASSERT_EQ(job_.Join(request), absl::OkStatus());
  }
  ExpectActive(3, 12);
}

// A rank that was killed after all had committed, before it knew.
TEST_F(CoordinatorGrowth, TheGroupFormsAnew_ARankThatHadPreparedIsToldAndTheGroupGoesOnForming) {
  job_.JoinAll();
  Grow();
  job_.Kill(1);
  job_.Pass(absl::Milliseconds(400), {0});
  KeptState kept = Kept(12);
  kept.prepared_spec_digest = GrownSpec().Digest();
  const absl::Status told = job_.Join(Successor(1, kept));
  EXPECT_TRUE(errors::IsStaleGeneration(told)) << told;
  for (const Rank rank : {0, 1}) {
    JoinRequest request = Successor(rank, Kept(12, StepOutcome::kIdle, 2));
    request.spec = GrownSpec();
    ASSERT_EQ(job_.Join(request), absl::OkStatus());
  }
  ExpectActive(3, 12);
}

TEST_F(CoordinatorGrowth, NotCommitted_ARankThatHadPreparedGoesOnWithout) {
  job_.JoinAll();
  for (Rank rank = 0; rank < kRanks; ++rank) Propose(rank, GrowthPhase::kCompare);
  Propose(1, GrowthPhase::kCommit);
  job_.Kill(1);
  job_.Pass(absl::Milliseconds(400), {0});
  KeptState kept = Kept(12);
  kept.prepared_spec_digest = GrownSpec().Digest();
  for (const Rank rank : {1, 0}) ASSERT_EQ(job_.Join(Successor(rank, kept)), absl::OkStatus());
  ExpectActive(2, 12);
}

TEST_F(CoordinatorGrowth, ACoordinatorThatKnowsNothing_HasItFromARankThatHasGoneOn) {
  JoinRequest grown = Successor(0, Kept(12, StepOutcome::kIdle, 2));
  grown.spec = GrownSpec();
  ASSERT_EQ(job_.Join(grown), absl::OkStatus());
  KeptState kept = Kept(12);
  kept.prepared_spec_digest = GrownSpec().Digest();
  const absl::Status told = job_.Join(Successor(1, kept));
  EXPECT_TRUE(errors::IsStaleGeneration(told)) << told;
  kept.prepared_spec_digest = 4711;
  EXPECT_TRUE(errors::IsRanksDisagree(job_.Join(Successor(1, kept))));
}

}  // namespace
}  // namespace optshard

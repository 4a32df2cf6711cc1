#include "server/coordinator/growth_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "common/spec_growth.h"
#include "tests/server/coordinator/join_requests.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
const absl::Time kStart = absl::UnixEpoch();

OptimizerSpec Present() { return TestJoin(0, kRanks).spec; }

OptimizerSpec Grown(int64_t rows = 2) {
  OptimizerSpec spec = Present();
  std::vector<GroupSpec> groups = spec.space.groups();
  ParameterSpec added;
  added.name = "head.weight";
  added.shape = {rows, 4};
  groups.push_back({{added}, spec.space.admission_count()});
  spec.space = ParameterSpace(std::move(groups));
  spec.rules.push_back({"sgd"});
  return spec;
}

class GrowthRoundsTest : public ::testing::Test {
 protected:
  using Outcome = GrowthRounds::Outcome;

  static GrowthProposal Proposal(uint64_t number, OptimizerSpec spec = Grown()) {
    GrowthProposal proposal;
    proposal.number = number;
    proposal.spec = std::move(spec);
    proposal.calls = 7;
    return proposal;
  }
  static GrowthProposal Commit(uint64_t number) {
    GrowthProposal proposal = Proposal(number);
    proposal.spec_digest = GrowthDigest(proposal.spec);
    proposal.phase = GrowthPhase::kCommit;
    return proposal;
  }

  Outcome Propose(Rank rank, const GrowthProposal& proposal) {
    const Outcome outcome = rounds_.Propose(
        rank, proposal, Present(), 5, now_, now_ + absl::Seconds(10),
        [this, rank](const absl::StatusOr<GrowthAnswer>& answer) {
          answers_[rank].push_back(answer);
        },
        deferred_);
    Run();
    return outcome;
  }
  void Tick(absl::Duration passed) {
    now_ += passed;
    rounds_.Tick(now_, deferred_);
    Run();
  }
  void Heard(Rank rank, StepOutcome outcome, StepNumber finished) {
    rounds_.Heard(rank, {finished, outcome, 0}, deferred_);
    Run();
  }
  void Left(Rank rank, StepNumber finished) {
    rounds_.Left(rank, {finished, StepOutcome::kIdle, 0}, deferred_);
    Run();
  }
  // The rank's last answer; an error where there is none.
  absl::StatusOr<GrowthAnswer> Answer(Rank rank) const {
    if (answers_[rank].empty()) return absl::InternalError("no answer");
    return answers_[rank].back();
  }
  absl::Status Refusal(Rank rank) const {
    const absl::StatusOr<GrowthAnswer> answer = Answer(rank);
    if (!answer.ok()) return answer.status();
    EXPECT_EQ(answer->verdict, GrowthVerdict::kRefused);
    return answer->failure;
  }
  void ExpectAgreed(Rank rank) const {
    ASSERT_EQ(Answer(rank).status(), absl::OkStatus());
    EXPECT_EQ(Answer(rank)->verdict, GrowthVerdict::kAgreed);
    EXPECT_EQ(Answer(rank)->generation, 5);
  }

  absl::Time now_ = kStart;
  GrowthRounds rounds_{"default", kRanks};
  std::vector<std::vector<absl::StatusOr<GrowthAnswer>>> answers_{kRanks};

 private:
  void Run() {
    Deferred deferred;
    deferred.swap(deferred_);
    for (const auto& callback : deferred) callback();
  }
  Deferred deferred_;
};

TEST_F(GrowthRoundsTest, SpecThatIsNone_IsRefusedForItsRankAlone) {
  Propose(0, Proposal(1));
  OptimizerSpec no_rule = Grown();
  no_rule.rules.pop_back();
  Propose(1, Proposal(1, no_rule));
  EXPECT_TRUE(absl::IsInvalidArgument(Answer(1).status())) << Answer(1).status();
  EXPECT_THAT(std::string(Answer(1).status().message()),
              HasSubstr("rank 1: the update rules of 1 param groups"));
  EXPECT_TRUE(answers_[0].empty());
  Propose(1, Proposal(1));
  Propose(2, Proposal(1));
  for (Rank rank = 0; rank < kRanks; ++rank) ExpectAgreed(rank);
}

TEST_F(GrowthRoundsTest, AllProposeTheSame_AllAreAnsweredWhenTheLastHasCome) {
  EXPECT_EQ(Propose(0, Proposal(1)), Outcome::kNone);
  EXPECT_EQ(Propose(1, Proposal(1)), Outcome::kNone);
  EXPECT_TRUE(answers_[0].empty());
  EXPECT_EQ(Propose(2, Proposal(1)), Outcome::kCompared);
  for (Rank rank = 0; rank < kRanks; ++rank) ExpectAgreed(rank);
  for (Rank rank = 0; rank < kRanks - 1; ++rank) {
    EXPECT_EQ(Propose(rank, Commit(1)), Outcome::kNone);
  }
  EXPECT_EQ(Propose(2, Commit(1)), Outcome::kCommitted);
  for (Rank rank = 0; rank < kRanks; ++rank) ExpectAgreed(rank);
  EXPECT_EQ(rounds_.compared()->space.Digest(), Grown().space.Digest());
}

TEST_F(GrowthRoundsTest, TheyDiffer_AllAreToldTheFirstDifference) {
  Propose(2, Proposal(1));
  Propose(1, Proposal(1, Grown(3)));
  EXPECT_TRUE(answers_[1].empty());
  Propose(0, Proposal(1));
  for (Rank rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(errors::IsRanksDisagree(Refusal(rank)));
    EXPECT_THAT(errors::RanksOf(Refusal(rank)), ElementsAre(1));
    EXPECT_THAT(std::string(Refusal(rank).message()),
                AllOf(HasSubstr("rank 2 has \"head.weight\" float32 [2, 4]"),
                      HasSubstr("rank 1 has \"head.weight\" float32 [3, 4]")));
  }
  // Nothing is left of it.
  for (Rank rank = 0; rank < kRanks; ++rank) Propose(rank, Proposal(2));
  for (Rank rank = 0; rank < kRanks; ++rank) ExpectAgreed(rank);
}

TEST_F(GrowthRoundsTest, RanksThatDoNotCome_AreNamedAtTheEarliestDeadline) {
  GrowthProposal patient = Proposal(1);
  patient.patience = absl::Seconds(4);
  Propose(1, patient);
  Propose(2, Proposal(1));
  Tick(absl::Seconds(4) - absl::Milliseconds(1));
  EXPECT_TRUE(answers_[1].empty());
  Tick(absl::Milliseconds(1));
  for (const Rank rank : {1, 2}) {
    EXPECT_TRUE(errors::IsPeersTimedOut(Refusal(rank)));
    EXPECT_THAT(errors::RanksOf(Refusal(rank)), ElementsAre(0));
    EXPECT_THAT(std::string(Refusal(rank).message()), HasSubstr("2 of 3 ranks have called"));
  }
  // The one that is late finds itself alone.
  Propose(0, Proposal(1));
  EXPECT_TRUE(answers_[0].empty());
}

TEST_F(GrowthRoundsTest, ARankThatCannotGoOn_IsNamedToAll) {
  GrowthProposal poor = Proposal(1);
  poor.prepared = absl::ResourceExhaustedError("needs 5 bytes, has 4");
  Propose(0, poor);
  Propose(1, Proposal(1));
  Propose(2, Proposal(1));
  for (Rank rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(Refusal(rank), absl::ResourceExhaustedError("rank 0: needs 5 bytes, has 4"));
  }
}

TEST_F(GrowthRoundsTest, Retry_GetsTheFirstAnswer) {
  for (Rank rank = 0; rank < kRanks; ++rank) Propose(rank, Proposal(1));
  Propose(1, Proposal(1));
  ASSERT_EQ(answers_[1].size(), 2u);
  ExpectAgreed(1);
  EXPECT_TRUE(rounds_.Knows(1, Proposal(1)));
  EXPECT_FALSE(rounds_.Knows(1, Commit(1)));
  EXPECT_FALSE(rounds_.Knows(1, Proposal(2)));
}

TEST_F(GrowthRoundsTest, RetryWhileOthersAreMissing_CountsOnceAndEndsTheFirstAttempt) {
  Propose(0, Proposal(1));
  Propose(0, Proposal(1));
  ASSERT_EQ(answers_[0].size(), 1u);
  EXPECT_EQ(Answer(0).status().code(), absl::StatusCode::kNotFound);
  Propose(1, Proposal(1));
  EXPECT_EQ(answers_[0].size(), 1u);
  Propose(2, Proposal(1));
  ExpectAgreed(0);
}

TEST_F(GrowthRoundsTest, AnAttemptThatHasWaitedLongEnough_AsksAgain) {
  Propose(0, Proposal(1));
  Tick(absl::Seconds(10));
  EXPECT_EQ(Answer(0).status().code(), absl::StatusCode::kNotFound);
  Propose(1, Proposal(1));
  EXPECT_EQ(Propose(2, Proposal(1)), Outcome::kCompared);
  Propose(0, Proposal(1));
  ExpectAgreed(0);
}

TEST_F(GrowthRoundsTest, TheSpec_IsAskedOfOneRankAndOfThoseThatDiffer) {
  GrowthProposal digest = Proposal(1);
  digest.spec_digest = GrowthDigest(digest.spec);
  Propose(0, digest);
  EXPECT_EQ(Answer(0)->verdict, GrowthVerdict::kSendSpec);
  Propose(1, digest);
  EXPECT_EQ(Answer(1)->verdict, GrowthVerdict::kAskAgain);
  now_ += GrowthRounds::kSpecPatience;
  Propose(1, digest);
  EXPECT_EQ(Answer(1)->verdict, GrowthVerdict::kSendSpec);
  Propose(0, Proposal(1));
  Propose(1, digest);  // known now
  EXPECT_EQ(answers_[1].size(), 2u);
  GrowthProposal other = Proposal(1, Grown(3));
  other.spec_digest = GrowthDigest(other.spec);
  Propose(2, other);
  EXPECT_EQ(Answer(2)->verdict, GrowthVerdict::kSendSpec);
  Propose(2, Proposal(1, Grown(3)));
  EXPECT_TRUE(errors::IsRanksDisagree(Refusal(0)));
  // Who was asked has come: the next one need not wait.
  digest.number = 2;
  Propose(0, digest);
  EXPECT_EQ(Answer(0)->verdict, GrowthVerdict::kSendSpec);
}

TEST_F(GrowthRoundsTest, ARankInAStep_EndsTheRoundWithItsSecondHeartbeat) {
  Propose(0, Proposal(1));
  Heard(1, StepOutcome::kInStep, 6);  // the step that rank 0 has finished
  Heard(1, StepOutcome::kInStep, 6);
  EXPECT_TRUE(answers_[0].empty());
  Heard(1, StepOutcome::kInStep, 7);
  Heard(1, StepOutcome::kIdle, 7);
  Heard(1, StepOutcome::kInStep, 7);
  EXPECT_TRUE(answers_[0].empty());
  Heard(1, StepOutcome::kInStep, 7);
  EXPECT_TRUE(Answer(0)->others_step);
  EXPECT_TRUE(errors::IsRanksDisagree(Refusal(0)));
  EXPECT_THAT(std::string(Refusal(0).message()),
              AllOf(HasSubstr("rank 0 adds a param group"), HasSubstr("rank 1 is in step()")));
}

TEST_F(GrowthRoundsTest, ARankWithoutATrainer_IsNamedOnceAllOthersHaveCome) {
  Propose(0, Proposal(1));
  for (int i = 0; i < 300; ++i) Heard(1, StepOutcome::kRefusing, 7);
  EXPECT_TRUE(answers_[0].empty());  // rank 2 computes its gradients
  Propose(2, Proposal(1));
  Heard(1, StepOutcome::kIdle, 7);
  Heard(1, StepOutcome::kRefusing, 7);
  Heard(1, StepOutcome::kRefusing, 6);  // the step that the others have finished
  Heard(1, StepOutcome::kRefusing, 7);
  EXPECT_TRUE(answers_[0].empty());
  Heard(1, StepOutcome::kRefusing, 7);
  for (const Rank rank : {0, 2}) {
    EXPECT_TRUE(Answer(rank)->others_step);
    EXPECT_TRUE(errors::IsTrainerGone(Refusal(rank))) << Refusal(rank);
    EXPECT_THAT(errors::RanksOf(Refusal(rank)), ElementsAre(1));
    EXPECT_THAT(std::string(Refusal(rank).message()), HasSubstr("rank 0 adds a param group"));
  }
  for (Rank rank = 0; rank < kRanks; ++rank) Propose(rank, Proposal(2));
  for (Rank rank = 0; rank < kRanks; ++rank) ExpectAgreed(rank);
}

TEST_F(GrowthRoundsTest, RanksWithoutTrainers_AreAllNamed) {
  Propose(0, Proposal(1));
  for (int i = 0; i < 2; ++i) Heard(1, StepOutcome::kRefusing, 7);
  EXPECT_TRUE(answers_[0].empty());
  for (int i = 0; i < 2; ++i) Heard(2, StepOutcome::kRefusing, 7);
  EXPECT_THAT(errors::RanksOf(Refusal(0)), ElementsAre(1, 2));
}

TEST_F(GrowthRoundsTest, ARankThatHasProposed_IsInNoStepWhateverALateHeartbeatSays) {
  Heard(0, StepOutcome::kInStep, 7);
  Propose(0, Proposal(1));
  for (int i = 0; i < 3; ++i) Heard(0, StepOutcome::kInStep, 6);
  Heard(0, StepOutcome::kInStep, 7);
  Propose(0, Proposal(1));  // asks again: it still waits
  answers_[0].clear();
  Heard(0, StepOutcome::kInStep, 7);
  EXPECT_TRUE(answers_[0].empty());
}

TEST_F(GrowthRoundsTest, ARankThatHasProposedAndStepsNow_HasGivenItUp) {
  Propose(0, Proposal(1));
  for (int i = 0; i < 2; ++i) Heard(0, StepOutcome::kInStep, 7);
  EXPECT_EQ(Answer(0).status().code(), absl::StatusCode::kNotFound);
  // Nobody was left.
  for (Rank rank = 0; rank < kRanks; ++rank) Propose(rank, Proposal(2));
  for (Rank rank = 0; rank < kRanks; ++rank) ExpectAgreed(rank);

  Propose(0, Proposal(3));
  Propose(1, Proposal(3));
  for (int i = 0; i < 2; ++i) Heard(0, StepOutcome::kInStep, 7);
  EXPECT_EQ(Answer(0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Answer(1)->others_step);
  EXPECT_THAT(std::string(Refusal(1).message()),
              AllOf(HasSubstr("rank 1 adds a param group"), HasSubstr("rank 0 is in step()")));
}

TEST_F(GrowthRoundsTest, ARankThatLeaves_EndsTheRoundForAll) {
  Left(2, 7);  // nobody waits for it
  Propose(0, Proposal(1));
  Propose(1, Proposal(1));
  EXPECT_TRUE(answers_[0].empty());
  Left(2, 7);
  for (const Rank rank : {0, 1}) {
    EXPECT_TRUE(errors::IsPeerLost(Refusal(rank))) << Refusal(rank);
    EXPECT_THAT(errors::RanksOf(Refusal(rank)), ElementsAre(2));
    EXPECT_THAT(std::string(Refusal(rank).message()),
                HasSubstr("it left the job after step 7, rank 0 adds a param group"));
    EXPECT_FALSE(Answer(rank)->others_step);
  }
}

TEST_F(GrowthRoundsTest, ARankThatHasProposedLeaves_OnlyOthersAreRefused) {
  Propose(0, Proposal(1));
  Left(0, 7);
  EXPECT_EQ(Answer(0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(rounds_.open());  // nobody was left in it
  Propose(1, Proposal(1));
  Propose(2, Proposal(1));
  Left(1, 7);
  EXPECT_EQ(Answer(1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(errors::RanksOf(Refusal(2)), ElementsAre(1));
  EXPECT_THAT(std::string(Refusal(2).message()), HasSubstr("rank 2 adds a param group"));
}

TEST_F(GrowthRoundsTest, AnotherCallOfARank_IsComparedAnew) {
  Propose(0, Proposal(1));
  Propose(1, Proposal(1));
  Propose(0, Proposal(2, Grown(3)));
  EXPECT_EQ(Answer(0).status().code(), absl::StatusCode::kNotFound);  // of its first call
  Propose(2, Proposal(1));
  for (Rank rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(errors::IsRanksDisagree(Refusal(rank)));
    EXPECT_THAT(std::string(Refusal(rank).message()),
                AllOf(HasSubstr("rank 1 has \"head.weight\" float32 [2, 4]"),
                      HasSubstr("rank 0 has \"head.weight\" float32 [3, 4]")));
  }
}

TEST_F(GrowthRoundsTest, AnotherCallOfTheOnlyRank_BeginsAnewAndItsReasonCounts) {
  Propose(0, Proposal(1));
  GrowthProposal poor = Proposal(2, Grown(3));
  poor.prepared = absl::ResourceExhaustedError("needs 5 bytes, has 4");
  Propose(0, poor);
  for (const Rank rank : {1, 2}) Propose(rank, Proposal(1, Grown(3)));
  EXPECT_EQ(Refusal(2), absl::ResourceExhaustedError("rank 0: needs 5 bytes, has 4"));
}

TEST_F(GrowthRoundsTest, CallsBeforeTheRanksLastOne_AreRefused) {
  Propose(0, Proposal(2));
  Propose(0, Proposal(1));
  EXPECT_EQ(Answer(0).status().code(), absl::StatusCode::kFailedPrecondition);
  for (const Rank rank : {1, 2}) Propose(rank, Proposal(2));
  ExpectAgreed(0);
  Propose(0, Proposal(1));
  EXPECT_EQ(Answer(0).status().code(), absl::StatusCode::kFailedPrecondition);
  for (Rank rank = 0; rank < kRanks; ++rank) Propose(rank, Commit(2));
  Propose(0, Proposal(2));
  EXPECT_EQ(Answer(0).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(GrowthRoundsTest, OptionsOfTheGroupsDiffer_AllAreToldWhichOne) {
  OptimizerSpec spec = Grown();
  spec.rules.back().hyperparameters.Set("lr", 0.5);
  Propose(0, Proposal(1, spec));
  spec.rules.back().hyperparameters.Set("lr", 0.25);
  Propose(1, Proposal(1, spec));
  Propose(2, Proposal(1, spec));
  EXPECT_TRUE(errors::IsRanksDisagree(Refusal(2)));
  EXPECT_THAT(std::string(Refusal(2).message()),
              HasSubstr("option \"lr\" of param group 1: rank 0 has 0.5, rank 1 has 0.25"));
}

TEST_F(GrowthRoundsTest, CommitOfWhatWasNotCompared_IsRefused) {
  GrowthProposal commit = Commit(1);
  commit.spec_digest.reset();
  Propose(0, commit);
  EXPECT_EQ(Answer(0).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(GrowthRoundsTest, SpecThatDoesNotGoOnFromThePresentOne_IsInvalid) {
  Propose(0, Proposal(1, Present()));
  EXPECT_EQ(Answer(0).status().code(), absl::StatusCode::kInvalidArgument);
  for (Rank rank = 0; rank < kRanks; ++rank) Propose(rank, Proposal(2));
  ExpectAgreed(0);
}

TEST_F(GrowthRoundsTest, CommitAndAnotherProposal_AreDifferentCalls) {
  for (Rank rank = 0; rank < kRanks; ++rank) Propose(rank, Proposal(1));
  Propose(0, Commit(1));
  Propose(1, Proposal(2));
  Propose(2, Commit(1));
  EXPECT_TRUE(errors::IsRanksDisagree(Refusal(0)));
}

}  // namespace
}  // namespace optshard

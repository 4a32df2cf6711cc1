#include "server/shard/engine/commit_decision.h"

#include <string>
#include <vector>

#include "common/errors.h"
#include "common/gradient_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CommitDecisionTest : public ::testing::Test {
 protected:
  CommitDecisionTest() {
    GroupSpec group;
    for (const char* name : {"a", "b"}) {
      ParameterSpec spec;
      spec.name = name;
      spec.shape = {4};
      group.parameters.push_back(spec);
    }
    space_ = ParameterSpace({group});
    for (Rank r = 0; r < 3; ++r) {
      CommitVote vote;
      vote.rank = r;
      vote.incarnation = 10 + r;
      vote.generation = 2;
      vote.step = 5;
      vote.hyperparameter_digests = {77};
      vote.has_gradient = {true, true};
      votes_.push_back(vote);
    }
  }

  CommitDecision Decide(GradientMode mode = GradientMode::kReduce) {
    return optshard::Decide(votes_, votes_[0], incarnations_, mode, space_);
  }

  ParameterSpace space_;
  std::vector<CommitVote> votes_;
  std::vector<Incarnation> incarnations_ = {0, 0, 0};
};

TEST_F(CommitDecisionTest, AllAgree_EverythingIsUpdated) {
  const CommitDecision decision = Decide(GradientMode::kAveraged);
  EXPECT_TRUE(decision.status.ok());
  EXPECT_THAT(decision.updated, ElementsAre(true, true));
  EXPECT_FALSE(decision.skipped);
}

TEST_F(CommitDecisionTest, GradientOnOneRank_UpdatesInReduceAndIsRefusedInAveraged) {
  votes_[0].has_gradient = {false, true};
  votes_[2].has_gradient = {false, true};
  EXPECT_THAT(Decide().updated, ElementsAre(true, true));
  const CommitDecision averaged = Decide(GradientMode::kAveraged);
  EXPECT_TRUE(errors::IsRanksDisagree(averaged.status));
  EXPECT_THAT(errors::RanksOf(averaged.status), ElementsAre(0, 2));
  EXPECT_THAT(std::string(averaged.status.message()),
              HasSubstr("parameter 0 \"a\" has a gradient on rank 1 but none on ranks 0, 2"));
}

TEST_F(CommitDecisionTest, SparseGradientOfAParameterWithoutRows_IsRefusedOnAllRanks) {
  for (CommitVote& vote : votes_) vote.sparse = {false, vote.rank != 1};
  const CommitDecision decision = Decide();
  EXPECT_EQ(decision.status.code(), absl::StatusCode::kInvalidArgument) << decision.status;
  EXPECT_THAT(
      std::string(decision.status.message()),
      HasSubstr("step 5: the gradient of parameter 1 \"b\" is sparse on ranks 0, 2, and the "
                "parameter has no rows"));
}

TEST_F(CommitDecisionTest, OneTrainerGoneAndAnotherRankInvalid_HasTheCodeOfTheMistake) {
  votes_[0].prepared = absl::UnavailableError("its trainer has ended");
  votes_[1].prepared = absl::InvalidArgumentError("parameter 0 has no memory");
  const CommitDecision decision = Decide();
  EXPECT_EQ(decision.status.code(), absl::StatusCode::kInvalidArgument) << decision.status;
  EXPECT_FALSE(decision.is_final);
}

TEST_F(CommitDecisionTest, OneRankTornAndAnotherInvalid_IsTorn) {
  votes_[0].prepared = absl::AbortedError("nothing is staged here");
  votes_[1].prepared = absl::DataLossError("the state is torn");
  votes_[2].prepared = absl::InvalidArgumentError("lr is nan");
  const CommitDecision decision = Decide();
  EXPECT_TRUE(errors::IsTornStep(decision.status)) << decision.status;
  EXPECT_THAT(std::string(decision.status.message()), HasSubstr("nothing is staged here"));
}

TEST_F(CommitDecisionTest, NoGradientAnywhere_Skips) {
  for (CommitVote& vote : votes_) vote.has_gradient = {false, false};
  const CommitDecision decision = Decide(GradientMode::kAveraged);
  EXPECT_TRUE(decision.status.ok());
  EXPECT_TRUE(decision.skipped);
  EXPECT_THAT(decision.updated, ElementsAre(false, false));
}

TEST_F(CommitDecisionTest, AnotherGeneration_IsStale) {
  votes_[1].generation = 1;
  EXPECT_TRUE(errors::IsStaleGeneration(Decide().status));
}

TEST_F(CommitDecisionTest, AnotherLifeOfARank_IsStale) {
  incarnations_ = {10, 11, 12};
  EXPECT_TRUE(Decide().status.ok());
  votes_[2].incarnation = 13;
  const CommitDecision decision = Decide();
  EXPECT_TRUE(errors::IsStaleIncarnation(decision.status));
  EXPECT_THAT(errors::RanksOf(decision.status), ElementsAre(2));
}

TEST_F(CommitDecisionTest, AnotherStep_NamesRankAndSteps) {
  votes_[2].step = 4;
  const CommitDecision decision = Decide();
  EXPECT_TRUE(errors::IsRanksDisagree(decision.status));
  EXPECT_THAT(errors::RanksOf(decision.status), ElementsAre(2));
  EXPECT_THAT(std::string(decision.status.message()),
              HasSubstr("rank 0 takes step 5, rank 2 takes step 4"));
}

TEST_F(CommitDecisionTest, VoteInAnothersPlace_IsInternal) {
  votes_[2].rank = 1;
  EXPECT_EQ(Decide().status.code(), absl::StatusCode::kInternal);
}

TEST_F(CommitDecisionTest, RanksThatCouldNotPrepare_AreAllNamed) {
  votes_[1].prepared = absl::InvalidArgumentError("lr is nan");
  votes_[2].prepared = absl::InternalError("no memory");
  // Their other claims do not matter any more.
  votes_[1].hyperparameter_digests = {1};
  const CommitDecision decision = Decide();
  EXPECT_EQ(decision.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(decision.status.message()),
              HasSubstr("rank 1: lr is nan; rank 2: no memory"));
  EXPECT_FALSE(decision.hyperparameters_differ);
}

TEST_F(CommitDecisionTest, HyperparametersDiffer_AsksForASecondRound) {
  votes_[1].hyperparameter_digests = {78};
  const CommitDecision decision = Decide();
  EXPECT_TRUE(decision.hyperparameters_differ);
  EXPECT_THAT(errors::RanksOf(decision.status), ElementsAre(1));
}

TEST(HyperparameterText_OneValueDiffers, DifferenceShowsBothSides) {
  std::vector<Hyperparameters> groups(2);
  groups[0].Set("lr", 0.1);
  groups[1].Set("betas", Numbers{0.9, 0.999});
  groups[1].Set("lr", 0.1);
  const std::string first = HyperparameterText(groups);
  groups[1].Set("betas", Numbers{0.9, 0.99});
  const std::string second = HyperparameterText(groups);
  EXPECT_EQ(DescribeDifference({first, first, second}),
            "group 1: betas is [0.9, 0.999] on rank 0 but [0.9, 0.99] on rank 2");
  EXPECT_EQ(DescribeDifference({first, first}), "");
}

TEST(CommitVote_EncodedAndDecoded, IsTheSame) {
  CommitVote vote;
  vote.rank = 3;
  vote.incarnation = 1ull << 60;
  vote.generation = 9;
  vote.step = 1ull << 40;
  vote.prepared = absl::InvalidArgumentError(std::string(1000, 'x'));
  vote.hyperparameter_digests = {1, ~0ull};
  vote.hyperparameter_text_bytes = 1234;
  vote.has_gradient = {true, false, false, true, false, false, true, true, true};
  vote.sparse = {true, false, false, false, false, false, true, false, true};
  vote.call = CommitCall::kVerify;
  vote.subject = 1ull << 63;
  vote.snapshots = {1, ~0ull, 0, 1ull << 63};
  std::vector<char> bytes(CommitVoteBytes(2, 9), 0x55);
  EncodeVote(vote, absl::MakeSpan(bytes));
  const absl::StatusOr<CommitVote> back = DecodeVote(bytes, 2, 9);
  ASSERT_TRUE(back.ok()) << back.status();
  // By position: a field that is added to a vote does not compile here until it is compared.
  const auto& [rank, incarnation, generation, step, prepared, digests, text_bytes, has_gradient,
               sparse, call, subject, snapshots] = *back;
  EXPECT_EQ(rank, vote.rank);
  EXPECT_EQ(incarnation, vote.incarnation);
  EXPECT_EQ(generation, vote.generation);
  EXPECT_EQ(step, vote.step);
  EXPECT_EQ(prepared.code(), vote.prepared.code());
  // The message is cut, the vote's size is fixed.
  EXPECT_EQ(prepared.message().size(), 240);
  EXPECT_EQ(digests, vote.hyperparameter_digests);
  EXPECT_EQ(text_bytes, vote.hyperparameter_text_bytes);
  EXPECT_EQ(has_gradient, vote.has_gradient);
  EXPECT_EQ(sparse, vote.sparse);
  EXPECT_EQ(call, vote.call);
  EXPECT_EQ(subject, vote.subject);
  EXPECT_EQ(snapshots, vote.snapshots);
}

TEST(CommitVote_OtherBytes_AreNoVote, AndThatIsSaid) {
  std::vector<char> bytes(CommitVoteBytes(1, 1), 0x55);
  EXPECT_EQ(DecodeVote(bytes, 1, 1).status().code(), absl::StatusCode::kInternal);
  EncodeVote(CommitVote{0, 1, 1, 1, absl::OkStatus(), {1}, 0, {true}}, absl::MakeSpan(bytes));
  EXPECT_TRUE(DecodeVote(bytes, 1, 1).ok());
  EXPECT_EQ(DecodeVote(bytes, 2, 1).status().code(), absl::StatusCode::kInternal);
}

TEST_F(CommitDecisionTest, RanksThatMakeDifferentCalls_AreToldWhichAreWhose) {
  votes_[1].call = CommitCall::kVerify;
  votes_[2].call = CommitCall::kSynchronise;
  const absl::Status status = Decide().status;
  EXPECT_TRUE(errors::IsRanksDisagree(status)) << status;
  EXPECT_EQ(errors::RanksOf(status), (std::vector<Rank>{1, 2}));
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("rank 0 steps, while rank 2 synchronises the parameters, while "
                                   "rank 1 verifies the replicas"));
}

TEST_F(CommitDecisionTest, RefusalOfWhatRanksWereGiven_IsNotFinal) {
  votes_[1].prepared = absl::InvalidArgumentError("lr is -1");
  EXPECT_FALSE(Decide().status.ok());
  EXPECT_FALSE(Decide().is_final);
  votes_[1].prepared = absl::OkStatus();
  votes_[1].hyperparameter_digests = {78};
  EXPECT_FALSE(Decide().status.ok());
  EXPECT_FALSE(Decide().is_final);
  votes_[1].hyperparameter_digests = {77};
  votes_[1].call = CommitCall::kSynchronise;
  EXPECT_FALSE(Decide().status.ok());
  EXPECT_FALSE(Decide().is_final);
}

TEST_F(CommitDecisionTest, RanksThatDoNotBelongTogether_AreFinal) {
  votes_[1].step = 6;
  EXPECT_TRUE(errors::IsRanksDisagree(Decide().status));
  EXPECT_TRUE(Decide().is_final);
  votes_[1].step = 5;
  votes_[1].generation = 3;
  EXPECT_TRUE(errors::IsStaleGeneration(Decide().status));
  EXPECT_TRUE(Decide().is_final);
  votes_[1].generation = 2;
  incarnations_ = {10, 12, 12};
  EXPECT_TRUE(errors::IsStaleIncarnation(Decide().status));
  EXPECT_TRUE(Decide().is_final);
}

}  // namespace
}  // namespace optshard

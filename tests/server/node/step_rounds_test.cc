#include "server/node/step_rounds.h"

#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(StepRounds_WhileItServes_LetsEveryRound, Begin) {
  StepRounds rounds;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(rounds.Enter(0));
  EXPECT_TRUE(rounds.Enter(1));
}

TEST(StepRounds_WhileItDrains_LetsTheOthersCatchUp, AndNoMore) {
  StepRounds rounds;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(rounds.Enter(0));
  EXPECT_TRUE(rounds.Enter(1));
  rounds.Drain();
  EXPECT_FALSE(rounds.Enter(0));
  EXPECT_TRUE(rounds.Enter(1));
  rounds.Drain();
  EXPECT_TRUE(rounds.Enter(1));
  EXPECT_FALSE(rounds.Enter(1));
  // One that was never in any.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(rounds.Enter(2));
  EXPECT_FALSE(rounds.Enter(2));
}

TEST(StepRounds_OfAnotherGeneration_BeginAnew, ForEachRank) {
  StepRounds rounds;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(rounds.Enter(0));
  EXPECT_TRUE(rounds.Enter(1));
  rounds.Begin(0, 2);
  rounds.Begin(1, 2);
  EXPECT_TRUE(rounds.Enter(1));
  rounds.Drain();
  EXPECT_TRUE(rounds.Enter(0)) << "rank 1 is in round 1 of generation 2";
  EXPECT_FALSE(rounds.Enter(0));
  EXPECT_FALSE(rounds.Enter(1));
}

TEST(StepRounds_RankInARoundThatAnotherHasNotBegun, IsAhead) {
  StepRounds rounds;
  EXPECT_FALSE(rounds.IsAhead(0));
  rounds.Begin(0, 1);
  rounds.Begin(1, 1);
  EXPECT_FALSE(rounds.IsAhead(0));
  EXPECT_TRUE(rounds.Enter(0));
  EXPECT_TRUE(rounds.IsAhead(0));
  EXPECT_FALSE(rounds.IsAhead(1));
  EXPECT_TRUE(rounds.Enter(1));
  EXPECT_FALSE(rounds.IsAhead(0));
  rounds.Begin(0, 2);
  EXPECT_FALSE(rounds.IsAhead(0)) << "it is in no round yet";
  EXPECT_TRUE(rounds.Enter(0));
  EXPECT_TRUE(rounds.IsAhead(0));
}

}  // namespace
}  // namespace optshard

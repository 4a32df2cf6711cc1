#include "server/coordinator/inspection/late_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kNow = absl::ZeroDuration();
const StepProgress kInStep8 = {7, StepOutcome::kInStep};

TEST(RanksBehind, RankThatHasNotBegunTheStep_IsWaitedFor) {
  const std::vector<RankProgress> others = {
      {0, {7, StepOutcome::kInStep}, kNow},
      {1, {7, StepOutcome::kIdle}, kNow},
      {2, {6, StepOutcome::kInStep}, kNow},
      {3, {8, StepOutcome::kIdle}, kNow},
  };
  EXPECT_THAT(RanksBehind(kInStep8, absl::Seconds(1), others), ElementsAre(1, 2));
}

TEST(RanksBehind, SkippedCalls_Count) {
  const std::vector<RankProgress> others = {{0, {5, StepOutcome::kInStep, 2}, kNow},
                                            {1, {5, StepOutcome::kInStep, 1}, kNow}};
  EXPECT_THAT(RanksBehind(kInStep8, absl::Seconds(1), others), ElementsAre(1));
}

TEST(RanksBehind, RankThatIsInNoStep_WaitsForNobody) {
  const std::vector<RankProgress> others = {{0, {3, StepOutcome::kIdle}, kNow}};
  EXPECT_THAT(RanksBehind({7, StepOutcome::kIdle}, absl::Seconds(1), others), IsEmpty());
}

TEST(RanksBehind, NewsFromBeforeTheStep_SaysNothing) {
  const std::vector<RankProgress> others = {{0, {7, StepOutcome::kIdle}, absl::Milliseconds(1001)},
                                            {1, {7, StepOutcome::kIdle}, absl::Milliseconds(999)}};
  EXPECT_THAT(RanksBehind(kInStep8, absl::Seconds(1), others), ElementsAre(1));
}

TEST(RanksText, ManyRanks_AreCut) {
  EXPECT_EQ(RanksText(std::vector<Rank>{3}), "rank 3");
  EXPECT_EQ(RanksText(std::vector<Rank>{3, 5}), "ranks 3, 5");
  std::vector<Rank> many;
  for (Rank rank = 0; rank < 20; ++rank) many.push_back(rank);
  EXPECT_EQ(RanksText(many), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more");
}

}  // namespace
}  // namespace optshard

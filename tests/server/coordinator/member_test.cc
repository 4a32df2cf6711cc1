#include "server/coordinator/member.h"

#include <gtest/gtest.h>

#include <vector>

namespace optshard {
namespace {

Member Final(StepNumber finished, StepOutcome outcome) {
  Member member;
  member.progress = {finished, outcome};
  member.progress_is_final = true;
  return member;
}

TEST(IsTorn, AppliedByAll_IsNot) {
  EXPECT_FALSE(IsTorn({Final(5, StepOutcome::kApplied), Final(5, StepOutcome::kApplied)}));
  EXPECT_FALSE(IsTorn({Final(5, StepOutcome::kApplied), Final(6, StepOutcome::kIdle)}));
}

TEST(IsTorn, AppliedBySome_Is) {
  EXPECT_TRUE(IsTorn({Final(5, StepOutcome::kApplied), Final(5, StepOutcome::kNotApplied)}));
  EXPECT_TRUE(IsTorn({Final(5, StepOutcome::kApplied), Final(6, StepOutcome::kApplied)}));
}

TEST(IsTorn, ProgressOfBeforeTheFailure_DoesNotCount) {
  Member dead = Final(4, StepOutcome::kInStep);
  dead.progress_is_final = false;
  EXPECT_FALSE(IsTorn({Final(5, StepOutcome::kApplied), dead}));
}

}  // namespace
}  // namespace optshard

#include "server/coordinator/member.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"

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

TEST(IsTorn, InDoubt_IsUntilItIsKnownThatNobodyHasAppliedIt) {
  Member dead = Final(5, StepOutcome::kInStep);
  dead.progress_is_final = false;
  EXPECT_TRUE(IsTorn({Final(5, StepOutcome::kInDoubt), dead}));
  EXPECT_FALSE(IsTorn({Final(5, StepOutcome::kInDoubt), Final(5, StepOutcome::kNotApplied)}));
  EXPECT_TRUE(IsTorn({Final(5, StepOutcome::kInDoubt), Final(5, StepOutcome::kApplied)}));
}

TEST(IsTorn, WhileItWasApplied_Is) {
  Member reported = Final(5, StepOutcome::kTorn);
  reported.progress_is_final = false;
  EXPECT_TRUE(IsTorn({reported, Final(5, StepOutcome::kNotApplied)}));
}

TEST(OwnersFrom, ManyRanks_ComeInPages) {
  std::vector<Member> members(kMostOwners + 3);
  for (size_t rank = 0; rank < members.size(); ++rank) {
    members[rank].request.owner_address = absl::StrCat("10.0.0.1:", rank);
  }
  const absl::StatusOr<OwnerPage> first = OwnersFrom(0, members, 7);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->generation, 7u);
  EXPECT_EQ(first->world_size, kMostOwners + 3);
  EXPECT_EQ(first->addresses.size(), static_cast<size_t>(kMostOwners));
  const absl::StatusOr<OwnerPage> rest = OwnersFrom(kMostOwners, members, 7);
  ASSERT_TRUE(rest.ok()) << rest.status();
  ASSERT_EQ(rest->addresses.size(), 3u);
  EXPECT_EQ(rest->addresses[2], absl::StrCat("10.0.0.1:", kMostOwners + 2));
  for (const Rank nobody : {-1, kMostOwners + 3}) {
    EXPECT_TRUE(absl::IsInvalidArgument(OwnersFrom(nobody, members, 7).status()));
  }
}

}  // namespace
}  // namespace optshard

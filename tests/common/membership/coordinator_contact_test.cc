#include "common/membership/coordinator_contact.h"

#include <gtest/gtest.h>

namespace optshard {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);
constexpr absl::Duration kLease = absl::Seconds(5);

TEST(CoordinatorContact, NobodyAsked_IsNotGone) {
  const CoordinatorContact contact(kLease, kStart);
  EXPECT_FALSE(contact.Gone(kStart + absl::Hours(1)));
}

TEST(CoordinatorContact, RefusedForASecond_IsGone) {
  CoordinatorContact contact(kLease, kStart);
  contact.Failed(true, kStart);
  contact.Failed(true, kStart + absl::Milliseconds(999));
  EXPECT_FALSE(contact.Gone(kStart + absl::Milliseconds(999)));
  EXPECT_TRUE(contact.Gone(kStart + absl::Seconds(1)));
}

TEST(CoordinatorContact, AnswerAfterRefusal_IsNotGone) {
  CoordinatorContact contact(kLease, kStart);
  contact.Failed(true, kStart);
  contact.Answered(kStart + absl::Milliseconds(500));
  contact.Failed(true, kStart + absl::Milliseconds(900));
  EXPECT_FALSE(contact.Gone(kStart + absl::Milliseconds(1800)));
  EXPECT_TRUE(contact.Gone(kStart + absl::Milliseconds(1900)));
}

TEST(CoordinatorContact, SilentForALease_IsGone) {
  CoordinatorContact contact(kLease, kStart);
  contact.Failed(false, kStart + absl::Seconds(3));
  EXPECT_FALSE(contact.Gone(kStart + kLease - absl::Milliseconds(1)));
  EXPECT_TRUE(contact.Gone(kStart + kLease));
}

TEST(CoordinatorContact, OnlyTheFirstFailureSinceAnAnswer_IsNews) {
  CoordinatorContact contact(kLease, kStart);
  EXPECT_TRUE(contact.Failed(true, kStart + absl::Seconds(1)));
  EXPECT_FALSE(contact.Failed(true, kStart + absl::Seconds(2)));
  contact.Answered(kStart + absl::Seconds(3));
  EXPECT_TRUE(contact.Failed(false, kStart + absl::Seconds(4)));
}

}  // namespace
}  // namespace optshard

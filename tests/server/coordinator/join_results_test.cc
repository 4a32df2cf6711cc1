#include "server/coordinator/join_results.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

JoinReply Reply(Incarnation incarnation) {
  JoinReply reply;
  reply.incarnation = incarnation;
  return reply;
}

TEST(JoinResults, Retry_FindsTheFirstAnswer) {
  JoinResults results(2);
  results.Record(0, "a", Reply(1));
  results.Record(0, "b", absl::InvalidArgumentError("no"));
  ASSERT_NE(results.Find(0, "a"), nullptr);
  EXPECT_EQ((*results.Find(0, "a"))->incarnation, 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(results.Find(0, "b")->status()));
  EXPECT_EQ(results.Find(1, "a"), nullptr);
  EXPECT_EQ(results.Find(0, "c"), nullptr);
}

TEST(JoinResults, AttemptWithoutAnId_IsNobodysRetry) {
  JoinResults results(1);
  results.Record(0, "", Reply(1));
  EXPECT_EQ(results.Find(0, ""), nullptr);
  EXPECT_TRUE(results.Admitted(0, 1));
}

TEST(JoinResults, Admitted_IsWhoGotAnIncarnation) {
  JoinResults results(2);
  results.Record(0, "a", Reply(3));
  results.Record(0, "b", absl::InvalidArgumentError("no"));
  EXPECT_TRUE(results.Admitted(0, 3));
  EXPECT_FALSE(results.Admitted(0, 4));
  EXPECT_FALSE(results.Admitted(1, 3));
}

TEST(JoinResults, ManyAttempts_TheOldestAreForgotten) {
  JoinResults results(1);
  for (Incarnation i = 1; i <= JoinResults::kPerRank + 1; ++i) {
    results.Record(0, absl::StrCat("attempt-", i), Reply(i));
  }
  EXPECT_EQ(results.Find(0, "attempt-1"), nullptr);
  EXPECT_NE(results.Find(0, "attempt-2"), nullptr);
}

}  // namespace
}  // namespace optshard

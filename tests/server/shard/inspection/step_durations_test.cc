#include "server/shard/inspection/step_durations.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace optshard {
namespace {

TimelineSpan Span(StepNumber step, const std::string& phase, int bucket, int64_t start,
                  int64_t duration) {
  TimelineSpan span;
  span.step = step;
  span.phase = phase;
  span.bucket = bucket;
  span.start_us = start;
  span.duration_us = duration;
  return span;
}

TEST(DurationsOf, TwoSteps_HaveARowEach) {
  const std::vector<TimelineSpan> spans = {
      Span(1, "reduce", 0, 5, 10),  Span(1, "reduce", 1, 10, 10), Span(1, "prepare", -1, 0, 20),
      Span(1, "commit", -1, 20, 3), Span(1, "update", 0, 23, 4),  Span(1, "publish", 0, 27, 2),
      Span(1, "update", 2, 27, 6),  Span(1, "apply", -1, 23, 10), Span(2, "prepare", -1, 50, 7),
  };
  const std::vector<StepDurations> steps = DurationsOf(spans);
  ASSERT_EQ(steps.size(), 2);
  EXPECT_EQ(steps[0].step, 1);
  EXPECT_EQ(steps[0].prepare_us, 20);
  EXPECT_EQ(steps[0].commit_us, 3);
  EXPECT_EQ(steps[0].apply_us, 10);
  EXPECT_EQ(steps[0].reduce_us, 15);
  EXPECT_EQ(steps[0].update_us, 10);
  EXPECT_EQ(steps[0].publish_us, 2);
  EXPECT_EQ(steps[0].updated_buckets, 2);
  EXPECT_EQ(steps[1].step, 2);
  EXPECT_EQ(steps[1].prepare_us, 7);
  EXPECT_EQ(steps[1].update_us, 0);
}

TEST(DurationsOf, StepThatWasTriedAgain_ComesTwice) {
  const std::vector<TimelineSpan> spans = {
      Span(3, "reduce", 0, 0, 1),    Span(3, "prepare", -1, 0, 1), Span(3, "commit", -1, 1, 100),
      Span(3, "reduce", 0, 200, 1),  Span(3, "reduce", 1, 201, 2), Span(3, "prepare", -1, 200, 3),
      Span(3, "commit", -1, 203, 4), Span(3, "apply", -1, 207, 8)};
  const std::vector<StepDurations> steps = DurationsOf(spans);
  ASSERT_EQ(steps.size(), 2);
  EXPECT_EQ(steps[0].commit_us, 100);
  EXPECT_EQ(steps[0].apply_us, 0);
  EXPECT_EQ(steps[0].reduce_us, 1);
  EXPECT_EQ(steps[1].reduce_us, 3);
  EXPECT_EQ(steps[1].prepare_us, 3);
  EXPECT_EQ(steps[1].commit_us, 4);
  EXPECT_EQ(steps[1].apply_us, 8);
}

// The votes have told that gradients are sparse: they are gathered once more, and then voted on.
TEST(DurationsOf, GatheredTwiceBeforeTheVote_IsOneRow) {
  const std::vector<TimelineSpan> spans = {
      Span(3, "prepare", -1, 0, 1), Span(3, "prepare", -1, 1, 4), Span(3, "commit", -1, 5, 2)};
  const std::vector<StepDurations> steps = DurationsOf(spans);
  ASSERT_EQ(steps.size(), 1);
  EXPECT_EQ(steps[0].prepare_us, 5);
}

}  // namespace
}  // namespace optshard

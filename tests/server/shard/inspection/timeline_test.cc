// The ring of the last steps and its Chrome trace.

#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/shard/inspection/timeline_json.h"
#include "server/shard/inspection/timeline_ring.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;

class HandClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch() + absl::Seconds(5); }
};

TimelineSpan Span(const std::string& phase, int bucket, int64_t start, int64_t duration) {
  TimelineSpan span;
  span.step = 1;
  span.phase = phase;
  span.bucket = bucket;
  span.start_us = start;
  span.duration_us = duration;
  return span;
}

TEST(TimelineRing_MoreStepsThanItKeeps, GivesTheLastOnesOldestFirst) {
  const HandClock clock;
  TimelineRing ring(2, clock);
  for (StepNumber step = 1; step <= 4; ++step) {
    ring.BeginStep(step, clock.Now());
    ring.Record("update", 3, clock.Now() + absl::Microseconds(10 * step),
                clock.Now() + absl::Microseconds(10 * step + 4));
    ring.EndStep();
  }
  const std::vector<TimelineSpan> spans = ring.Read();
  ASSERT_EQ(spans.size(), 2);
  EXPECT_EQ(spans[0].step, 3);
  EXPECT_EQ(spans[0].bucket, 3);
  EXPECT_EQ(spans[0].phase, "update");
  EXPECT_EQ(spans[0].start_us, 30);
  EXPECT_EQ(spans[0].duration_us, 4);
  EXPECT_EQ(spans[1].step, 4);
}

class MovingClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch() + now_; }
  absl::Duration now_ = absl::Seconds(5);
};

TEST(TimelineRing_PhasesOfAStep, AreSaidWithTheTimeSinceTheyBegan) {
  MovingClock clock;
  TimelineRing ring(2, clock);
  const auto expect = [&](RankPhase phase, int64_t microseconds) {
    EXPECT_EQ(ring.activity().phase, phase);
    EXPECT_EQ(ring.activity().lasts, absl::Microseconds(microseconds));
  };
  const auto at = [](int64_t microseconds) {
    return absl::UnixEpoch() + absl::Seconds(5) + absl::Microseconds(microseconds);
  };
  clock.now_ += absl::Microseconds(100);
  expect(RankPhase::kIdle, 100);
  ring.BeginStep(1, at(90));
  expect(RankPhase::kPrepare, 10);
  ring.Record("reduce", 0, at(90), at(92));
  expect(RankPhase::kPrepare, 10);
  ring.Record("prepare", -1, at(90), at(95));
  expect(RankPhase::kCommit, 5);
  ring.Record("commit", -1, at(95), at(97));
  expect(RankPhase::kApply, 3);
  ring.Record("apply", -1, at(97), at(98));
  ring.EndStep();
  expect(RankPhase::kIdle, 2);
  ring.BeginStep(1, at(99), RankPhase::kCommit);
  expect(RankPhase::kCommit, 1);
  ring.EndStep();  // failed
  expect(RankPhase::kIdle, 0);
  ring.BeginStep(2, at(99));
  ring.DropStep();
  expect(RankPhase::kIdle, 0);
}

TEST(TimelineRing_StepUnderWay, IsNotShown) {
  const HandClock clock;
  TimelineRing ring(2, clock);
  ring.BeginStep(1, clock.Now());
  ring.Record("update", 0, clock.Now(), clock.Now());
  EXPECT_TRUE(ring.Read().empty());
}

TEST(TimelineJson_OverlappingSpans, GetRowsOfTheirOwn) {
  const MemberId member = {"job", "default", 2, 1};
  const nlohmann::json trace = nlohmann::json::parse(
      TimelineJson(member, {Span("publish", 0, 0, 10), Span("publish", 1, 5, 10),
                            Span("publish", 2, 12, 3), Span("commit", -1, 0, 4)}));
  std::vector<int> rows;
  std::vector<std::string> names;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    EXPECT_EQ(event["pid"], 2);
    if (event["ph"] != "X") continue;
    rows.push_back(event["tid"]);
    names.push_back(event["name"]);
    EXPECT_EQ(event["args"]["step"], 1);
  }
  EXPECT_THAT(names, ElementsAre("publish 0", "publish 1", "publish 2", "commit"));
  EXPECT_THAT(rows, ElementsAre(1, 2, 1, 3));
}

TEST(TimelineJson_NameThatIsNoText, StaysValidJson) {
  const MemberId member = {"j\xff\"ob", "d\xc3\xa9", 0, 1};
  const std::string json = TimelineJson(member, {});
  EXPECT_TRUE(nlohmann::json::accept(json));
  for (const char c : json) EXPECT_LT(static_cast<unsigned char>(c), 128);
}

}  // namespace
}  // namespace optshard

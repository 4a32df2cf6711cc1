#include "server/shard/snapshot/right_of_way.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "absl/types/optional.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace optshard {
namespace {

TEST(RightOfWayTest, WhatGivesWay_WaitsForTheStepsEnd) {
  const auto steps = std::make_shared<RightOfWay>();
  absl::optional<RightOfWay::Taken> step(*steps);
  std::atomic<bool> has_ended{false};
  std::thread work([&] {
    const FakeClock clock;
    GivingWay giving_way(steps, absl::InfiniteDuration(), clock);
    giving_way.Wait();
    while (steps->is_taken()) giving_way.Wait();  // for a second each time
    EXPECT_TRUE(has_ended.load());
  });
  has_ended.store(true);
  step.reset();
  work.join();
  EXPECT_FALSE(steps->is_taken());
}

// Moves by a millisecond in each wait, and not in between.
class ClockOfWaits final : public Clock {
 public:
  absl::Time Now() const override {
    if (!std::exchange(is_start_, false)) {
      ++waits_;
      now_ += absl::Milliseconds(1);
    }
    return now_;
  }
  void BeginWork(absl::Duration takes) {
    is_start_ = true;
    now_ += takes;
  }
  int waits() const { return waits_; }

 private:
  mutable bool is_start_ = true;
  mutable int waits_ = 0;
  mutable absl::Time now_ = absl::UnixEpoch();
};

TEST(RightOfWayTest, StepsWithoutAPause_HoldWorkUpForTheGraceAndAsLongAsItTakes) {
  const auto steps = std::make_shared<RightOfWay>();
  const RightOfWay::Taken step(*steps);
  ClockOfWaits clock;
  GivingWay giving_way(steps, absl::Milliseconds(3), clock);
  for (int piece = 0; piece < 20; ++piece) {
    clock.BeginWork(absl::ZeroDuration());
    giving_way.Wait();
  }
  EXPECT_EQ(clock.waits(), 3);
  for (int piece = 0; piece < 20; ++piece) {
    clock.BeginWork(piece < 5 ? absl::Milliseconds(1) : absl::ZeroDuration());
    giving_way.Wait();
  }
  EXPECT_EQ(clock.waits(), 8);
}

}  // namespace
}  // namespace optshard

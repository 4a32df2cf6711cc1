#include "common/clock.h"

#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace optshard {
namespace {

TEST(MonotonicClock, Now_AskedTwice_LiesBetweenTwoReadingsOfTheMachine) {
  const auto before = std::chrono::steady_clock::now();
  const absl::Time first = Clock::Monotonic().Now();
  const absl::Time second = Clock::Monotonic().Now();
  const auto after = std::chrono::steady_clock::now();
  EXPECT_LE(first, second);
  EXPECT_LE(second - first, absl::FromChrono(after - before));
}

TEST(MonotonicClock, Get_Twice_IsOneClock) { EXPECT_EQ(&Clock::Monotonic(), &Clock::Monotonic()); }

TEST(FakeClock, Advance_Forward_MovesByJustThat) {
  FakeClock clock;
  const absl::Time start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(absl::Seconds(3));
  EXPECT_EQ(clock.Now(), start + absl::Seconds(3));
}

TEST(FakeClock, Advance_Backward_StandsStill) {
  FakeClock clock(absl::UnixEpoch());
  clock.Advance(absl::Seconds(-3));
  EXPECT_EQ(clock.Now(), absl::UnixEpoch());
}

TEST(FakeClock, Advance_FromManyThreads_LosesNone) {
  FakeClock clock(absl::UnixEpoch());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&clock] {
      for (int k = 0; k < 100; ++k) clock.Advance(absl::Seconds(1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(clock.Now(), absl::UnixEpoch() + absl::Seconds(400));
}

}  // namespace
}  // namespace optshard

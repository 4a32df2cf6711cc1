#include "common/link/bell.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/in_child.h"

namespace optshard {
namespace {

absl::Time In(absl::Duration duration) { return Clock::Monotonic().Now() + duration; }

constexpr absl::Duration kLong = absl::Seconds(30);

// Waits for the ring after the one that made Count() `heard`, and answers on the other bell.
bool Answer(Bell& hears, Bell& rings, uint32_t turns) {
  for (uint32_t turn = 0; turn < turns; ++turn) {
    if (!hears.Wait(turn, In(kLong))) return false;
    rings.Ring();
  }
  return true;
}

bool Ask(Bell& rings, Bell& hears, uint32_t turns, absl::Duration spin) {
  for (uint32_t turn = 0; turn < turns; ++turn) {
    rings.Ring();
    if (!hears.Wait(turn, In(kLong), spin)) return false;
  }
  return true;
}

class BellOfTwoThreads : public ::testing::TestWithParam<absl::Duration> {};

TEST_P(BellOfTwoThreads, PingPong_ManyTurns_LosesNone) {
  constexpr uint32_t kTurns = 500;
  Bell ping;
  Bell pong;
  std::thread other([&] { EXPECT_TRUE(Answer(ping, pong, kTurns)); });
  EXPECT_TRUE(Ask(ping, pong, kTurns, GetParam()));
  other.join();
  EXPECT_EQ(ping.Count(), kTurns);
  EXPECT_EQ(pong.Count(), kTurns);
}

INSTANTIATE_TEST_SUITE_P(Spins, BellOfTwoThreads,
                         ::testing::Values(absl::ZeroDuration(), absl::Microseconds(20)));

TEST(Bell, PingPong_BetweenProcesses_LosesNone) {
  constexpr uint32_t kTurns = 500;
  void* const shared =
      mmap(nullptr, 2 * sizeof(Bell), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  // Memory of zeros is a bell: nothing constructs one there.
  Bell* const bells = static_cast<Bell*>(shared);
  testing::Child child([&] { return Answer(bells[0], bells[1], kTurns) ? 0 : 1; });
  EXPECT_TRUE(Ask(bells[0], bells[1], kTurns, absl::ZeroDuration()));
  EXPECT_EQ(child.Wait(), 0);
  munmap(shared, 2 * sizeof(Bell));
}

TEST(Bell, Wait_RungBefore_ReturnsAtOnce) {
  Bell bell;
  bell.Ring();
  EXPECT_EQ(bell.Count(), 1u);
  EXPECT_TRUE(bell.Wait(0, absl::InfiniteFuture()));
  EXPECT_TRUE(bell.Wait(0, absl::InfinitePast()));  // it rang: no matter how late it is
}

TEST(Bell, Wait_RungBetweenCountAndWait_IsNotLost) {
  Bell bell;
  bell.Ring();
  const uint32_t heard = bell.Count();
  bell.Ring();
  EXPECT_TRUE(bell.Wait(heard, absl::InfiniteFuture()));
}

TEST(Bell, Wait_NobodyRings_ReturnsFalseAfterTheDeadline) {
  Bell bell;
  for (const absl::Duration spin : {absl::ZeroDuration(), absl::Milliseconds(1), kLong}) {
    const absl::Time deadline = In(absl::Milliseconds(3));
    EXPECT_FALSE(bell.Wait(0, deadline, spin));
    EXPECT_GE(Clock::Monotonic().Now(), deadline);
  }
  EXPECT_FALSE(bell.Wait(0, absl::InfinitePast()));
}

TEST(Bell, Ring_ManyWait_WakesAll) {
  constexpr int kWaiters = 8;
  Bell bell;
  Bell ready;
  std::vector<std::thread> waiters;
  for (int i = 0; i < kWaiters; ++i) {
    waiters.emplace_back([&] {
      ready.Ring();
      EXPECT_TRUE(bell.Wait(0, absl::InfiniteFuture()));
    });
  }
  for (uint32_t heard = ready.Count(); heard < kWaiters; heard = ready.Count()) {
    ASSERT_TRUE(ready.Wait(heard, In(kLong)));
  }
  bell.Ring();
  for (std::thread& waiter : waiters) waiter.join();
}

TEST(Bell, Wait_SeesTheRing_SeesWhatWasWrittenBefore) {
  Bell bell;
  int written = 0;
  std::thread writer([&] {
    written = 7;
    bell.Ring();
  });
  EXPECT_TRUE(bell.Wait(0, In(kLong)));
  EXPECT_EQ(written, 7);
  writer.join();
}

TEST(Bell, Wait_SignalArrives_GoesOnWaiting) {
  struct sigaction action = {};
  action.sa_handler = [](int) {};  // without SA_RESTART: calls are interrupted
  struct sigaction before;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  Bell bell;
  std::atomic<bool> woke{false};
  std::thread waiter([&] {
    EXPECT_TRUE(bell.Wait(0, absl::InfiniteFuture()));
    woke.store(true);
  });
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(pthread_kill(waiter.native_handle(), SIGUSR1), 0);
    std::this_thread::yield();
  }
  EXPECT_FALSE(woke.load());
  bell.Ring();
  waiter.join();
  sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace
}  // namespace optshard

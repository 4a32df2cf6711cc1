#include "tests/testing/local_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/errors.h"
#include "tests/server/coordinator/join_requests.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;

absl::Time Soon() { return Clock::Monotonic().Now() + absl::Seconds(20); }

class LocalCoordinatorTest : public ::testing::Test {
 protected:
  std::vector<std::unique_ptr<MemberSession>> JoinAll() {
    std::vector<std::unique_ptr<MemberSession>> sessions;
    for (Rank rank = 0; rank < 3; ++rank) {
      sessions.push_back(coordinator_.Join(TestJoin(rank, 3), Soon()).value());
    }
    for (const auto& session : sessions) EXPECT_TRUE(session->WaitForPlan(Soon()).ok());
    return sessions;
  }

  LocalCoordinator coordinator_{3};
};

TEST_F(LocalCoordinatorTest, Rendezvous_GoesFromRankToRank) {
  auto sessions = JoinAll();
  std::thread putter([&] { EXPECT_TRUE(sessions[1]->rendezvous().Put("k", "v").ok()); });
  EXPECT_EQ(sessions[0]->rendezvous().Get("k", Soon()).value(), "v");
  putter.join();
}

TEST_F(LocalCoordinatorTest, Killed_TheOthersAreToldAndTheFailureNamesIt) {
  auto sessions = JoinAll();
  absl::Mutex mutex;
  bool told = false;
  sessions[0]->OnFailure([&](const absl::Status&) {
    absl::MutexLock lock(&mutex);
    told = true;
  });
  coordinator_.Kill(1);
  {
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&told), absl::Seconds(20)));
  }
  const absl::Status failure = sessions[2]->ReportFailure(
      {1, StepOutcome::kNotApplied}, 0, errors::PeerLost(0, "connection reset"), Soon());
  EXPECT_TRUE(errors::IsPeerLost(failure));
  EXPECT_THAT(errors::RanksOf(failure), ElementsAre(1));
}

TEST_F(LocalCoordinatorTest, KilledAndBackWithItsState_AllGoOn) {
  auto sessions = JoinAll();
  coordinator_.Kill(1);
  std::vector<std::unique_ptr<MemberSession>> successors;
  for (Rank rank : {1, 0, 2}) {
    JoinRequest request = TestJoin(rank, 3);
    request.request_id = "";
    request.resumes = KeptState{1, {12, StepOutcome::kInDoubt}};
    successors.push_back(coordinator_.Join(request, Soon()).value());
  }
  for (const auto& session : successors) {
    const absl::StatusOr<MemberEvent> event = session->WaitForPlan(Soon());
    ASSERT_TRUE(event.ok()) << event.status();
    EXPECT_EQ(event->ready->plan.generation, 2u);
    EXPECT_EQ(event->ready->finished, 12u);
  }
  const absl::Status told =
      sessions[0]->ReportFailure({}, -1, absl::UnavailableError("plane broken"), Soon());
  EXPECT_THAT(errors::RanksOf(told), ElementsAre(1));
}

TEST_F(LocalCoordinatorTest, Stalled_IsNamedAtItsLeasesEnd) {
  auto sessions = JoinAll();
  coordinator_.Stall(2);
  const absl::Status failure =
      sessions[0]->ReportFailure({}, 1, errors::PeerLost(1, "connection reset"), Soon());
  EXPECT_THAT(errors::RanksOf(failure), ElementsAre(2));
}

TEST_F(LocalCoordinatorTest, SessionDestroyed_LooksLikeADeathUnlessItLeft) {
  auto sessions = JoinAll();
  ASSERT_TRUE(sessions[0]->Leave(Soon()).ok());
  sessions[0].reset();
  sessions[1].reset();
  const absl::Status failure =
      sessions[2]->ReportFailure({}, -1, absl::UnavailableError("plane broken"), Soon());
  EXPECT_THAT(errors::RanksOf(failure), ElementsAre(1));
}

TEST_F(LocalCoordinatorTest, RankMissing_DeadlineNamesIt) {
  const auto session = coordinator_.Join(TestJoin(0, 3), Soon()).value();
  const absl::Status status =
      session->WaitForPlan(Clock::Monotonic().Now() + absl::Milliseconds(20)).status();
  EXPECT_TRUE(errors::IsPeersTimedOut(status));
  EXPECT_THAT(errors::RanksOf(status), ElementsAre(1, 2));
}

}  // namespace
}  // namespace optshard

// A job of two ranks whose processes are killed and started again over memory that outlives them.
#ifndef OPTSHARD_TESTS_SERVER_COORDINATOR_GROUP_RESUMES_H_
#define OPTSHARD_TESTS_SERVER_COORDINATOR_GROUP_RESUMES_H_

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "server/coordinator/coordinator.h"
#include "tests/server/coordinator/job_on_fake_clock.h"
#include "tests/server/coordinator/join_requests.h"

namespace optshard {

// One life of one rank, as its process knows itself.
struct Life {
  Caller caller;
  WatchId watch = 0;
};

class GroupResumes : public ::testing::Test {
 protected:
  static constexpr int kRanks = 2;

  static KeptState Kept(StepNumber finished, StepOutcome outcome = StepOutcome::kIdle,
                        Generation generation = 1) {
    return KeptState{generation, {finished, outcome}};
  }

  // Another process of the rank, with a request id of its own.
  JoinRequest Successor(Rank rank, absl::optional<KeptState> kept) {
    ++processes_;
    JoinRequest request = TestJoin(rank, kRanks);
    request.request_id = absl::StrCat("successor-", processes_);
    request.pid = 200 + processes_;
    request.resumes = kept;
    return request;
  }

  absl::Status Resume(Rank rank, absl::optional<KeptState> kept) {
    return job_.Join(Successor(rank, kept));
  }

  // Both ranks have come to step 12 by plan 1, then rank 1 is killed.
  void KillRankOne() {
    job_.JoinAll();
    job_.progress_[0] = job_.progress_[1] = {12, StepOutcome::kIdle};
    job_.Pass(absl::Milliseconds(100), {0, 1});
    job_.Kill(1);
  }
  void KillRankOneAndNotice() {
    KillRankOne();
    job_.Pass(absl::Milliseconds(300), {0});
    ASSERT_EQ(job_.Group().state, GroupState::kFailed);
  }

  Life LifeOf(Rank rank) const { return {job_.callers_[rank], job_.watches_[rank]}; }

  std::vector<MemberEvent> EventsOf(const Life& life, uint64_t after = 0) const {
    return job_.coordinator_->ReadEvents(life.caller, life.watch, after).value().events;
  }

  // The only event of a rank that resumed: its plan, or OK where there is none yet.
  absl::StatusOr<MemberEvent> PlanOf(Rank rank) {
    const std::vector<MemberEvent> events = job_.Events(rank);
    if (events.empty()) return absl::UnavailableError("no plan yet");
    if (events[0].kind == MemberEvent::Kind::kGroupFailed) return events[0].failure;
    return events[0];
  }

  void ExpectActive(Generation generation, StepNumber finished) {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      const absl::StatusOr<MemberEvent> plan = PlanOf(rank);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->ready->plan.generation, generation);
      EXPECT_EQ(plan->ready->finished, finished);
      int others = -1;  // than the plan
      for (const MemberEvent& event : job_.Events(rank)) {
        others += event.kind == MemberEvent::Kind::kProgressWanted ? 0 : 1;
      }
      EXPECT_EQ(others, 0);
    }
    EXPECT_EQ(job_.Group().state, GroupState::kActive);
    EXPECT_EQ(job_.Group().generation, generation);
  }

  JobOnFakeClock job_{kRanks};
  int processes_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_TESTS_SERVER_COORDINATOR_GROUP_RESUMES_H_

// A coordinator and members on a fake clock, without gRPC.
#ifndef OPTSHARD_TESTS_SERVER_COORDINATOR_JOB_ON_FAKE_CLOCK_H_
#define OPTSHARD_TESTS_SERVER_COORDINATOR_JOB_ON_FAKE_CLOCK_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "common/incarnation.h"
#include "common/membership/membership.h"
#include "server/coordinator/coordinator.h"
#include "tests/server/coordinator/join_requests.h"
#include "tests/testing/fake_clock.h"

namespace optshard {

// A job with members that open their streams as sessions do.
class JobOnFakeClock {
 public:
  explicit JobOnFakeClock(int world_size, Rank host_rank = -1) : world_size_(world_size) {
    options_.group.world_size = world_size;
    options_.group.host_rank = host_rank;
    options_.clock = &clock_;
    callers_.resize(world_size);
    watches_.resize(world_size);
    wakes_.resize(world_size);
    StartCoordinator();
  }

  // A new one, which knows nobody, in place of one there may be.
  void StartCoordinator() {
    ++options_.group.epoch;
    coordinator_ = Coordinator::Create(options_).value();
  }

  // Which life of its rank the member is, as the present coordinator counts.
  uint64_t LifeCount(Rank rank) const {
    EXPECT_EQ(EpochOf(callers_[rank].member.incarnation), options_.group.epoch);
    return CountOf(callers_[rank].member.incarnation);
  }

  absl::Status Join(Rank rank) { return Join(TestJoin(rank, world_size_)); }

  absl::Status Join(const JoinRequest& request) {
    const Rank rank = request.rank;
    const absl::StatusOr<JoinReply> reply = coordinator_->Join(request);
    if (!reply.ok()) return reply.status();
    callers_[rank] = {{"optshard", "default", rank, reply->incarnation}, 0};
    watches_[rank] =
        coordinator_->OpenWatch(callers_[rank], [this, rank] { ++wakes_[rank]; }).value();
    return absl::OkStatus();
  }

  void JoinAll() {
    for (Rank rank = 0; rank < world_size_; ++rank) ASSERT_TRUE(Join(rank).ok());
    for (Caller& caller : callers_) caller.generation = 1;
  }

  std::vector<MemberEvent> Events(Rank rank) {
    return coordinator_->ReadEvents(callers_[rank], watches_[rank], 0).value().events;
  }

  // OK as long as the rank was not told of a failure.
  absl::Status Failure(Rank rank) {
    for (const MemberEvent& event : Events(rank)) {
      if (event.kind == MemberEvent::Kind::kGroupFailed) return event.failure;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Coordinator::Answer> Beat(Rank rank, StepProgress progress = {}) {
    return coordinator_->Heartbeat(callers_[rank], progress);
  }

  // Lets time pass in small steps, as the ticker does, while `alive` keep their leases.
  void Pass(absl::Duration time, const std::vector<Rank>& alive) {
    constexpr absl::Duration kStep = absl::Milliseconds(100);
    for (absl::Duration passed; passed < time; passed += kStep) {
      clock_.Advance(kStep);
      for (Rank rank : alive) Beat(rank, progress_[rank]).IgnoreError();
      coordinator_->Tick();
    }
  }

  void Kill(Rank rank) { coordinator_->CloseWatch(callers_[rank], watches_[rank]); }

  absl::Status Report(Rank rank, Rank suspect,
                      StepProgress progress = {0, StepOutcome::kNotApplied}) {
    return coordinator_
        ->ReportFailure(callers_[rank], progress, suspect,
                        errors::PeerLost(suspect, "connection reset by peer"))
        .status();
  }

  GroupStatus Group() { return coordinator_->GetStatus("default").groups.at(0); }

  const int world_size_;
  FakeClock clock_;
  Coordinator::Options options_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<Caller> callers_;
  std::vector<WatchId> watches_;
  std::vector<int> wakes_;
  std::map<Rank, StepProgress> progress_;
};

}  // namespace optshard

#endif  // OPTSHARD_TESTS_SERVER_COORDINATOR_JOB_ON_FAKE_CLOCK_H_

// A coordinator's server on a fake clock, and members with a client each, over loopback.
#ifndef OPTSHARD_TESTS_SERVER_COORDINATOR_COORDINATOR_RPC_RIG_H_
#define OPTSHARD_TESTS_SERVER_COORDINATOR_COORDINATOR_RPC_RIG_H_

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/membership/coordinator_client_rpc.h"
#include "common/membership/membership.h"
#include "server/coordinator/coordinator_server.h"
#include "tests/server/coordinator/join_requests.h"
#include "tests/testing/fake_clock.h"

namespace optshard {

class CoordinatorRpcRig : public ::testing::Test {
 protected:
  // The failure that a member is told of, which can be waited for.
  class Told {
   public:
    void Tell(const absl::Status& failure) {
      absl::MutexLock lock(&mutex_);
      failure_ = failure;
    }
    bool HasCome() const {
      absl::MutexLock lock(&mutex_);
      return !failure_.ok();
    }
    absl::Status Wait() const {
      absl::MutexLock lock(&mutex_);
      const auto has_come = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !failure_.ok(); };
      mutex_.AwaitWithTimeout(absl::Condition(&has_come), absl::Seconds(20));
      return failure_;
    }

   private:
    mutable absl::Mutex mutex_;
    absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  };

  struct Member {
    std::shared_ptr<Told> told = std::make_shared<Told>();
    std::unique_ptr<MemberSession> session;

    absl::Status Failure() const { return told->Wait(); }
  };

  static absl::Time In(absl::Duration time) { return Clock::Monotonic().Now() + time; }

  CoordinatorRpcRig() {
    // The fake clock goes much faster than heartbeats come.
    options_.coordinator.group.liveness.lease = absl::Hours(1000);
  }

  void Start(int world_size, Rank host_rank = -1) {
    world_size_ = world_size;
    options_.coordinator.clock = &clock_;
    options_.coordinator.group.world_size = world_size;
    options_.coordinator.group.host_rank = host_rank;
    options_.tick = absl::Milliseconds(5);
    server_ = CoordinatorServer::Start(options_).value();
  }

  absl::StatusOr<Member> Join(Rank rank) { return Join(TestJoin(rank, world_size_)); }

  absl::StatusOr<Member> Join(const JoinRequest& request) {
    // A client each, as separate processes have.
    absl::StatusOr<std::unique_ptr<CoordinatorClient>> client =
        MakeCoordinatorClient(server_->address());
    if (!client.ok()) return client.status();
    absl::StatusOr<std::unique_ptr<MemberSession>> session =
        (*client)->Join(request, In(absl::Seconds(20)));
    if (!session.ok()) return session.status();
    Member member;
    member.session = *std::move(session);
    member.session->OnFailure(
        [told = member.told](const absl::Status& failure) { told->Tell(failure); });
    return member;
  }

  std::vector<Member> JoinAll() {
    std::vector<Member> members;
    for (Rank rank = 0; rank < world_size_; ++rank) members.push_back(Join(rank).value());
    for (Member& member : members) {
      EXPECT_TRUE(member.session->WaitForPlan(In(absl::Seconds(20))).ok());
    }
    return members;
  }

  // Time that the coordinator sees pass. What passes unseen is a pause to it.
  void Pass(absl::Duration step) {
    clock_.Advance(step);
    server_->coordinator().Tick();
  }

  // Time that passes only for the coordinator. Real time goes on until `done`.
  template <typename Condition>
  bool PassUntil(Condition done) {
    const absl::Time deadline = In(absl::Seconds(20));
    while (!done()) {
      if (Clock::Monotonic().Now() > deadline) return false;
      Pass(absl::Milliseconds(20));
      std::this_thread::yield();
    }
    return true;
  }

  GroupStatus Group() { return server_->coordinator().GetStatus("default").groups.at(0); }

  int world_size_ = 0;
  FakeClock clock_;
  CoordinatorServer::Options options_;
  std::unique_ptr<CoordinatorServer> server_;
};

}  // namespace optshard

#endif  // OPTSHARD_TESTS_SERVER_COORDINATOR_COORDINATOR_RPC_RIG_H_

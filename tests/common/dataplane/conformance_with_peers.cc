// What a plane does when its peers die, hang or differ.
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/errors.h"
#include "tests/common/dataplane/conformance.h"
#include "tests/common/dataplane/conformance_operations.h"

namespace optshard {

TEST_P(DataPlaneWithPeers, PeerIsGone_OthersGetPeerLost) {
  const Rank lost = world_size() - 1;
  Meeting all_connected(world_size());
  Run([&](DataPlane& plane) {
    EXPECT_TRUE(Barrier(plane, 0).ok());
    all_connected.Attend();
    if (plane.rank() == lost) return;  // destroys the plane
    const absl::Status status = Barrier(plane, 1);
    EXPECT_TRUE(errors::IsPeerLost(status)) << status;
    EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{lost}) << status;
    EXPECT_FALSE(Barrier(plane, 2).ok()) << "a broken plane stays broken";
    EXPECT_FALSE(plane.Close(FarDeadline()).ok());
  });
}

// What a plane over a device relies on, whose own waits see nothing of processes.
TEST_P(DataPlaneWithPeers, PeerIsGone_StatusNamesItThoughNobodyWaits) {
  const Rank lost = world_size() - 1;
  Meeting all_connected(world_size());
  Meeting named(world_size() - 1);
  Run([&](DataPlane& plane) {
    EXPECT_TRUE(Barrier(plane, 0).ok());
    EXPECT_TRUE(plane.status().ok()) << plane.status();
    all_connected.Attend();
    if (plane.rank() == lost) return;  // destroys the plane
    const absl::Time deadline = Clock::Monotonic().Now() + absl::Seconds(20);
    while (plane.status().ok() && Clock::Monotonic().Now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(errors::IsPeerLost(plane.status())) << plane.status();
    EXPECT_EQ(errors::RanksOf(plane.status()), std::vector<Rank>{lost}) << plane.status();
    named.Attend();  // who leaves earlier is lost, too
  });
}

TEST_P(DataPlaneWithPeers, Status_AfterAbortAndAfterClose_SaysWhyNothingMayStart) {
  Meeting all_closed(world_size());
  Run([&](DataPlane& plane) {
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(plane.status())) << plane.status();
    all_closed.Attend();
  });
  Meeting all_connected(world_size());
  Run([&](DataPlane& plane) {
    EXPECT_TRUE(Barrier(plane, 0).ok());
    all_connected.Attend();
    plane.Abort(absl::DataLossError("the test says so"));
    EXPECT_FALSE(plane.status().ok());
  });
}

TEST_P(DataPlaneWithPeers, PeerNeverComes_OthersTimeOutNamingIt) {
  const Rank late = 0;
  Meeting all_connected(world_size());
  absl::BlockingCounter given_up(world_size() - 1);
  Run([&](DataPlane& plane) {
    EXPECT_TRUE(Barrier(plane, 0).ok());
    all_connected.Attend();
    if (plane.rank() == late) return given_up.Wait();
    std::vector<char> data(1 << 16);
    const absl::Time start = Clock::Monotonic().Now();
    const absl::Status status = WaitFor(plane.Publish(Tag(StepPhase::kPublish), kHost, late,
                                                      AllRanks(plane), data.data(), data.size()),
                                        start + absl::Milliseconds(150));
    EXPECT_LT(Clock::Monotonic().Now() - start, absl::Seconds(20));
    EXPECT_TRUE(errors::IsPeersTimedOut(status)) << status;
    EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{late}) << status;
    EXPECT_EQ(Barrier(plane, 1).code(), status.code()) << "the first error stays";
    given_up.DecrementCount();
  });
}

TEST_P(DataPlaneWithPeers, Operation_SizesDiffer_IsAnErrorEverywhere) {
  Run([&](DataPlane& plane) {
    const size_t bytes = plane.rank() == 0 ? 100 : 200;
    std::vector<char> mine(bytes), gathered(bytes * world_size());
    const absl::Status status = WaitFor(
        plane.AllGather(Tag(StepPhase::kCommit), kHost, mine.data(), gathered.data(), bytes),
        Clock::Monotonic().Now() + absl::Milliseconds(150));
    EXPECT_FALSE(status.ok());
  });
}

TEST_P(DataPlaneWithPeers, Abort_FromAnotherThread_WakesTheWaitWithItsReason) {
  Meeting all_connected(world_size());
  absl::Notification rank_0_is_done;
  Run([&](DataPlane& plane) {
    EXPECT_TRUE(Barrier(plane, 0).ok());
    all_connected.Attend();
    // The others' planes live on and say nothing.
    if (plane.rank() != 0) return rank_0_is_done.WaitForNotification();
    std::vector<char> data(1 << 16);
    auto ticket = plane.Publish(Tag(StepPhase::kPublish), kHost, 1, AllRanks(plane), data.data(),
                                data.size());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    absl::Time aborted_at;
    std::thread aborter([&] {
      aborted_at = Clock::Monotonic().Now();
      plane.Abort(errors::PeerLost(1, "the test says so"));
      plane.Abort(absl::InternalError("the first reason stays"));
    });
    const absl::Status status = (*ticket)->Wait(FarDeadline());
    const absl::Time woken_at = Clock::Monotonic().Now();
    aborter.join();
    EXPECT_LT(woken_at - aborted_at, absl::Seconds(2));
    EXPECT_TRUE(errors::IsPeerLost(status)) << status;
    EXPECT_EQ(WaitFor(plane.Publish(Tag(StepPhase::kPublish, 1), kHost, 1, AllRanks(plane),
                                    data.data(), data.size())),
              status);
    rank_0_is_done.Notify();
  });
}

// A rank that has closed in good order will not come any more: nobody waits for it in vain.
TEST_P(DataPlaneWithPeers, Wait_PeerHasClosed_EndsWithAnErrorLongBeforeItsDeadline) {
  Meeting all_connected(world_size());
  absl::BlockingCounter ended(world_size() - 1);
  Run([&](DataPlane& plane) {
    EXPECT_TRUE(Barrier(plane, 0).ok());
    all_connected.Attend();
    if (plane.rank() == 0) {
      EXPECT_FALSE(plane.Close(Clock::Monotonic().Now() + absl::Milliseconds(100)).ok());
      return ended.Wait();
    }
    const absl::Time start = Clock::Monotonic().Now();
    const absl::Status status = Barrier(plane, 1);
    EXPECT_FALSE(status.ok());
    EXPECT_LT(Clock::Monotonic().Now() - start, absl::Seconds(30)) << status;
    ended.DecrementCount();
  });
}

TEST_P(DataPlaneWithPeers, Close_PeerDoesNotClose_TimesOutNamingIt) {
  Meeting all_connected(world_size());
  absl::BlockingCounter given_up(world_size() - 1);
  Run([&](DataPlane& plane) {
    EXPECT_TRUE(Barrier(plane, 0).ok());
    all_connected.Attend();
    if (plane.rank() == 0) return given_up.Wait();
    const absl::Status status = plane.Close(Clock::Monotonic().Now() + absl::Milliseconds(150));
    EXPECT_FALSE(status.ok());
    if (world_size() == 2) {
      EXPECT_TRUE(errors::IsPeersTimedOut(status)) << status;
      EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{0}) << status;
    }
    given_up.DecrementCount();
  });
}

}  // namespace optshard

// The NCCL plane when something fails or a rank is lost. The fake plane of the hosts knows who is
// gone; NCCL says at most that somebody is.
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "common/dataplane/nccl/nccl_plane.h"
#include "common/errors.h"
#include "gmock/gmock.h"
#include "tests/common/dataplane/nccl_group.h"
#include "tests/common/dataplane/nccl_ranks.h"

namespace optshard {
namespace {

using Tickets = std::vector<std::unique_ptr<Ticket>>;

// A rank's abort that takes until it is let go, which happens once it has begun.
class SlowAbort {
 public:
  SlowAbort(testing::FakeNccl& nccl, Rank rank) {
    nccl.HangInAbort(rank);
    thread_ = std::thread([&nccl, rank, this] {
      EXPECT_TRUE(Eventually([&] { return nccl.HasBegunToAbort(rank); }));
      has_been_let_go_ = true;
      nccl.ReleaseAbort(rank);
    });
  }
  ~SlowAbort() { thread_.join(); }

  bool HasBeenLetGo() const { return has_been_let_go_; }

 private:
  std::atomic<bool> has_been_let_go_{false};
  std::thread thread_;
};

void TakeYourTimeToAbort(NcclPlaneOptions& options) { options.abort_grace = absl::Minutes(1); }

absl::Time Soon() { return Clock::Monotonic().Now() + absl::Milliseconds(100); }

TEST(NcclPlane, PeerLostInMidBroadcast_IsNamedThoughNcclIsSilent) {
  NcclGroup group(3);
  Meeting under_way(3);
  RunRanks(group, 3, [&](const OnDevice& rank) {
    group.nccl().Hang(2);
    std::vector<char> data(1000);
    auto ticket = rank.Publish(0, 0, data.data(), data.size());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    group.devices().RunWhatCanRun();
    under_way.Attend();
    if (rank.plane.rank() == 2) return;  // destroys the plane
    const absl::Status lost = (*ticket)->Wait(FarDeadline());
    EXPECT_TRUE(errors::IsPeerLost(lost)) << lost;
    EXPECT_EQ(errors::RanksOf(lost), std::vector<Rank>{2}) << lost;
  });
}

// The caller may free its memory as soon as it is told.
TEST(NcclPlane, Wait_PeerIsLost_ReturnsOnceNcclHasLetGoOfTheDevice) {
  NcclGroup group(2);
  const SlowAbort abort(group.nccl(), 0);
  Meeting under_way(2);
  RunRanks(group, 2, TakeYourTimeToAbort, [&](const OnDevice& rank) {
    under_way.Attend();
    if (rank.plane.rank() == 1) return;  // destroys the plane
    std::vector<char> data(1000);
    const absl::Status lost = WaitFor(rank.Publish(0, 1, data.data(), data.size()));
    EXPECT_EQ(errors::RanksOf(lost), std::vector<Rank>{1}) << lost;
    EXPECT_TRUE(abort.HasBeenLetGo());
  });
}

// What was done before the plane broke is done; what was aborted is complete on the stream, too,
// and is not.
TEST(NcclPlane, Wait_PlaneHasBroken_IsOkForWhatWasCompleteBefore) {
  NcclGroup group(2);
  Meeting enqueued(2);
  Meeting done(2);
  Meeting over(2);
  // The plane's thread does not look.
  const auto change = [](NcclPlaneOptions& options) { options.watch_interval = absl::Minutes(1); };
  RunRanks(group, 2, change, [&](const OnDevice& rank) {
    std::vector<char> data(1000, static_cast<char>('a' + rank.plane.rank()));
    auto complete = rank.Publish(0, 1, data.data(), data.size());
    ASSERT_TRUE(complete.ok()) << complete.status();
    enqueued.Attend();
    group.devices().RunWhatCanRun();
    done.Attend();
    if (rank.plane.rank() == 1) return over.Attend();
    Tickets alone;
    for (int bucket = 1; bucket <= 2; ++bucket) {
      alone.push_back(rank.Publish(bucket, 1, data.data(), data.size()).value());
    }
    rank.plane.Abort(absl::CancelledError("enough"));
    over.Attend();
    for (const auto& ticket : alone) {
      EXPECT_TRUE(absl::IsCancelled(ticket->Wait(FarDeadline())));
    }
    EXPECT_EQ((*complete)->Wait(FarDeadline()), absl::OkStatus());
    EXPECT_EQ(data, std::vector<char>(1000, 'b'));
  });
}

TEST(NcclPlane, PeerLost_NobodyWaits_StatusNamesItAndStreamsGoOn) {
  NcclGroup group(2);
  Meeting under_way(2);
  RunRanks(group, 2, [&](const OnDevice& rank) {
    if (rank.plane.rank() == 1) return under_way.Attend();  // destroys the plane
    std::vector<char> data(1000);
    auto ticket = rank.Publish(0, 1, data.data(), data.size());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    ASSERT_TRUE((*ticket)->OrderOn(rank.context()).ok());
    std::atomic<bool> stream_went_on{false};
    group.devices().Enqueue(rank.stream.get(), [&] { return stream_went_on = true; });
    under_way.Attend();
    EXPECT_TRUE(Eventually([&] { return !rank.plane.status().ok(); }));
    EXPECT_EQ(errors::RanksOf(rank.plane.status()), std::vector<Rank>{1}) << rank.plane.status();
    EXPECT_TRUE(Eventually([&] {
      group.devices().RunWhatCanRun();
      return stream_went_on.load();
    }));
  });
}

TEST(NcclPlane, AsyncError_HostPlaneMissesARank_NamesItWithNcclsWords) {
  NcclGroup group(2);
  Meeting all_connected(2);
  RunRanks(group, 2, [&](const OnDevice& rank) {
    all_connected.Attend();
    if (rank.plane.rank() == 1) {
      EXPECT_TRUE(Eventually([&] { return !rank.plane.status().ok(); }));
      return;
    }
    std::vector<char> data(1000);
    auto ticket = rank.Publish(0, 1, data.data(), data.size());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    group.nccl().FailAsync(0, absl::UnavailableError("remote error"));
    EXPECT_TRUE(rank.plane.status().ok()) << "nobody is named yet";
    group.hosts().Kill(1);
    const absl::Status lost = (*ticket)->Wait(FarDeadline());
    EXPECT_TRUE(errors::IsPeerLost(lost)) << lost;
    EXPECT_EQ(errors::RanksOf(lost), std::vector<Rank>{1}) << lost;
  });
}

TEST(NcclPlane, AsyncError_NobodyIsMissing_IsReturnedAndOthersNameThisRank) {
  NcclGroup group(2);
  Meeting all_connected(2);
  RunRanks(
      group, 2, [](NcclPlaneOptions& options) { options.naming_time = absl::Milliseconds(20); },
      [&](const OnDevice& rank) {
        all_connected.Attend();
        std::vector<char> data(1000);
        if (rank.plane.rank() == 0) {
          group.nccl().FailAsync(0, absl::InternalError("unhandled cuda error"));
          EXPECT_TRUE(Eventually([&] { return !rank.plane.status().ok(); }));
        }
        const absl::Status failed = WaitFor(rank.Publish(0, 1, data.data(), data.size()));
        if (rank.plane.rank() == 0) {
          EXPECT_EQ(failed, absl::InternalError("unhandled cuda error"));
        } else {
          EXPECT_EQ(errors::RanksOf(failed), std::vector<Rank>{0}) << failed;
        }
      });
}

TEST(NcclPlane, Wait_PeerHangsInMidBroadcast_TimesOutNamingItOnAllRanks) {
  NcclGroup group(3);
  Meeting all_connected(3);
  RunRanks(group, 3, [&](const OnDevice& rank) {
    group.nccl().Hang(0);
    all_connected.Attend();
    std::vector<char> data(1000);
    auto ticket = rank.Publish(0, 0, data.data(), data.size());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    const absl::Status hung = (*ticket)->Wait(rank.plane.rank() == 1 ? Soon() : FarDeadline());
    EXPECT_TRUE(errors::IsPeersTimedOut(hung)) << hung;
    EXPECT_EQ(errors::RanksOf(hung), std::vector<Rank>{0}) << hung;
  });
}

TEST(NcclPlane, Wait_BehindAnOperationThatHangs_NamesWhomThatOneWaitsFor) {
  NcclGroup group(3);
  absl::Notification given_up;
  RunRanks(group, 3, [&](const OnDevice& rank) {
    if (rank.plane.rank() == 2) return given_up.WaitForNotification();
    std::vector<char> data(1000);
    auto of_the_absent = rank.Publish(0, 2, data.data(), data.size());
    auto of_another = rank.plane.Publish(Tag(StepPhase::kPublish, 1), rank.context(), 0, {0, 1},
                                         data.data(), data.size());
    ASSERT_TRUE(of_the_absent.ok() && of_another.ok());
    const absl::Status late = (*of_another)->Wait(rank.plane.rank() == 1 ? Soon() : FarDeadline());
    EXPECT_TRUE(errors::IsPeersTimedOut(late)) << late;
    EXPECT_EQ(errors::RanksOf(late), std::vector<Rank>{2}) << late;
    if (rank.plane.rank() == 1) given_up.Notify();
  });
}

TEST(NcclPlane, Operation_NobodyWaitsAndThePeerNeverComes_BreaksThePlaneInTime) {
  NcclGroup group(2);
  absl::Notification given_up;
  RunRanks(
      group, 2,
      [](NcclPlaneOptions& options) { options.operation_timeout = absl::Milliseconds(50); },
      [&](const OnDevice& rank) {
        if (rank.plane.rank() == 1) return given_up.WaitForNotification();
        std::vector<char> data(1000);
        auto ticket = rank.Publish(0, 1, data.data(), data.size());
        ASSERT_TRUE(ticket.ok()) << ticket.status();
        ASSERT_TRUE((*ticket)->OrderOn(rank.context()).ok());
        EXPECT_TRUE(Eventually([&] { return !rank.plane.status().ok(); }));
        EXPECT_TRUE(errors::IsPeersTimedOut(rank.plane.status())) << rank.plane.status();
        EXPECT_EQ(errors::RanksOf(rank.plane.status()), std::vector<Rank>{1});
        given_up.Notify();
      });
}

TEST(NcclPlane, Launch_NeverComesThrough_TimesOutNamingWhomItWaitsFor) {
  testing::FakeNccl::Options never;
  never.busy_polls = 1 << 30;  // the peers do not connect
  NcclGroup group(2, never);
  RunRanks(
      group, 2,
      [](NcclPlaneOptions& options) { options.operation_timeout = absl::Milliseconds(50); },
      [&](const OnDevice& rank) {
        std::vector<char> data(1000);
        auto ticket = rank.Publish(0, 1, data.data(), data.size());
        ASSERT_TRUE(ticket.ok()) << ticket.status();
        const absl::Status late = (*ticket)->Wait(FarDeadline());
        EXPECT_TRUE(errors::IsPeersTimedOut(late)) << late;
        EXPECT_FALSE((*ticket)->OrderOn(rank.context()).ok());
      });
}

TEST(NcclPlane, Abort_ThatHangs_BlocksNobody) {
  NcclGroup group(2);
  Meeting all_connected(2);
  group.nccl().HangInAbort(0);
  RunRanks(
      group, 2, [](NcclPlaneOptions& options) { options.abort_grace = absl::Milliseconds(20); },
      [&](const OnDevice& rank) {
        all_connected.Attend();
        if (rank.plane.rank() == 1) {
          EXPECT_TRUE(Eventually([&] { return !rank.plane.status().ok(); }));
          return;
        }
        std::vector<char> data(1000);
        auto ticket = rank.Publish(0, 1, data.data(), data.size());
        ASSERT_TRUE(ticket.ok()) << ticket.status();
        const absl::Time start = Clock::Monotonic().Now();
        rank.plane.Abort(absl::DataLossError("the test says so"));
        EXPECT_EQ((*ticket)->Wait(FarDeadline()), absl::DataLossError("the test says so"));
        EXPECT_EQ(rank.Publish(1, 1, data.data(), 1).status(),
                  absl::DataLossError("the test says so"));
        EXPECT_LT(Clock::Monotonic().Now() - start, absl::Seconds(10));
        EXPECT_FALSE(group.nccl().HasAborted(0));
      });
  EXPECT_FALSE(group.nccl().HasAborted(0)) << "the plane is destroyed, and its abort still hangs";
}

TEST(NcclPlane, Device_FailsInADriver_BreaksThePlane) {
  NcclGroup group(1);
  RunRanks(
      group, 1, [](NcclPlaneOptions& options) { options.abort_grace = absl::Milliseconds(20); },
      [&](const OnDevice& rank) {
        std::vector<float> values(10);
        auto ticket = rank.Reduce(0, 0, values.data(), 10);
        ASSERT_TRUE(ticket.ok()) << ticket.status();
        const absl::Status illegal = absl::InternalError("an illegal memory access");
        group.devices().Fail(illegal);
        EXPECT_EQ((*ticket)->Wait(FarDeadline()), illegal);
        EXPECT_EQ(rank.plane.status(), illegal);
      });
}

TEST(NcclPlane, HostPlane_FailsInAVote_LeavesNothingUnderWayOnTheDevice) {
  NcclGroup group(2);
  const SlowAbort abort(group.nccl(), 0);
  Meeting under_way(2);
  RunRanks(group, 2, TakeYourTimeToAbort, [&](const OnDevice& rank) {
    std::vector<char> data(1000);
    if (rank.plane.rank() == 1) return under_way.Attend();
    auto ticket = rank.Publish(0, 1, data.data(), data.size());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    char vote = 1;
    std::vector<char> votes(2);
    auto gathered =
        rank.plane.AllGather(Tag(StepPhase::kCommit), kHost, &vote, votes.data(), sizeof vote);
    ASSERT_TRUE(gathered.ok()) << gathered.status();
    under_way.Attend();
    const absl::Status lost = (*gathered)->Wait(FarDeadline());
    EXPECT_EQ(errors::RanksOf(lost), std::vector<Rank>{1}) << lost;
    EXPECT_TRUE(abort.HasBeenLetGo());
  });
}

}  // namespace
}  // namespace optshard

// What is particular to the NCCL plane; the conformance suite has the rest.
#include "common/dataplane/nccl/nccl_plane.h"

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "common/dtype_conversion.h"
#include "common/errors.h"
#include "gmock/gmock.h"
#include "tests/common/dataplane/conformance_operations.h"
#include "tests/common/dataplane/nccl_group.h"
#include "tests/common/dataplane/order_sensitive.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Tickets = std::vector<std::unique_ptr<Ticket>>;

// One rank of a test: its plane, and a stream of its device as a trainer has one.
struct OnDevice {
  OnDevice(NcclGroup& group_of, const NcclPlaneOptions& options, DataPlane& its_plane)
      : group(group_of), plane(its_plane), device(*options.device), stream(*device->NewStream()) {}

  ExecutionContext context() const { return {device->name(), stream.get()}; }
  std::vector<Rank> all() const { return AllRanks(plane); }

  absl::StatusOr<std::unique_ptr<Ticket>> Publish(int32_t bucket, Rank owner, void* data,
                                                  size_t bytes) const {
    return plane.Publish(Tag(StepPhase::kPublish, bucket), context(), owner, all(), data, bytes);
  }
  absl::StatusOr<std::unique_ptr<Ticket>> Reduce(int32_t bucket, Rank owner, float* values,
                                                 int64_t elements) const {
    return plane.Reduce(Tag(StepPhase::kReduce, bucket), context(),
                        AverageOver(OneGroup(plane.world_size()), owner), DType::kFloat32, values,
                        plane.rank() == owner ? values : nullptr, elements);
  }

  NcclGroup& group;
  DataPlane& plane;
  const std::shared_ptr<DeviceApi> device;
  const std::shared_ptr<void> stream;
};

using Change = std::function<void(NcclPlaneOptions& options)>;
using Body = std::function<void(const OnDevice& rank)>;

void RunRanks(NcclGroup& group, int world_size, const Change& change, const Body& body) {
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      NcclPlaneOptions options = group.OptionsOf(rank);
      change(options);
      absl::StatusOr<std::unique_ptr<DataPlane>> plane = group.Make(options);
      ASSERT_TRUE(plane.ok()) << "rank " << rank << ": " << plane.status();
      body(OnDevice(group, options, **plane));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(group.nccl().Misuses(), IsEmpty());
}

void RunRanks(NcclGroup& group, int world_size, const Body& body) {
  RunRanks(
      group, world_size, [](NcclPlaneOptions&) {}, body);
}

// Each rank's answer to Create.
std::vector<absl::Status> CreateAll(NcclGroup& group, int world_size, const Change& change) {
  std::vector<absl::Status> answers(world_size);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      NcclPlaneOptions options = group.OptionsOf(rank);
      change(options);
      answers[rank] = group.Make(options).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return answers;
}

template <typename Condition>
bool Eventually(const Condition& condition) {
  const absl::Time deadline = Clock::Monotonic().Now() + absl::Seconds(30);
  while (!condition()) {
    if (Clock::Monotonic().Now() >= deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

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

TEST(NcclPlane, Step_OrderedOnStreams_NeverWaitsForTheDevice) {
  constexpr int kBuckets = 6;
  constexpr int64_t kElements = 1000;
  NcclGroup group(3);
  RunRanks(group, 3, [&](const OnDevice& rank) {
    const int world_size = rank.plane.world_size();
    std::vector<std::vector<float>> gradients, parameters;
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      gradients.push_back(OrderSensitiveValues<float>(rank.plane.rank(), kElements, bucket));
      parameters.emplace_back(kElements);
    }
    char vote = 1;
    std::vector<char> votes(world_size);
    Tickets tickets;
    const auto take = [&](absl::StatusOr<std::unique_ptr<Ticket>> ticket) {
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      ASSERT_TRUE((*ticket)->OrderOn(rank.context()).ok());
      tickets.push_back(*std::move(ticket));
    };

    const int64_t before = group.devices().HostSynchronisations();
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      take(rank.Reduce(bucket, bucket % world_size, gradients[bucket].data(), kElements));
    }
    take(rank.plane.AllGather(Tag(StepPhase::kCommit), rank.context(), &vote, votes.data(), 1));
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      // The update: applied where all have voted.
      if (bucket % world_size == rank.plane.rank()) {
        group.devices().Enqueue(rank.stream.get(), [&, bucket] {
          if (votes == std::vector<char>(votes.size(), 1)) parameters[bucket] = gradients[bucket];
          return true;
        });
      }
      take(rank.Publish(bucket, bucket % world_size, parameters[bucket].data(),
                        kElements * sizeof(float)));
    }
    EXPECT_EQ(group.devices().HostSynchronisations(), before);

    ASSERT_TRUE(tickets.back()->Wait(FarDeadline()).ok());
    EXPECT_GT(group.devices().HostSynchronisations(), before) << "the counter counts";
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      EXPECT_TRUE(
          SameBits(parameters[bucket],
                   ExpectedAverage<float>(OneGroup(world_size), world_size, kElements, bucket)))
          << "bucket " << bucket;
    }
    EXPECT_TRUE(rank.plane.Close(FarDeadline()).ok());
  });
}

TEST(NcclPlane, Publish_UpdateOfTheNextBucketIsUnderWay_CompletesMeanwhile) {
  NcclGroup group(2);
  std::atomic<bool> next_update_may_end{false};
  RunRanks(group, 2, [&](const OnDevice& rank) {
    std::vector<int> first(100), second(100);
    if (rank.plane.rank() == 0) {
      group.devices().Enqueue(rank.stream.get(), [&] {
        first.assign(first.size(), 1);
        return true;
      });
    }
    auto publish_first = rank.Publish(0, 0, first.data(), first.size() * sizeof(int));
    ASSERT_TRUE(publish_first.ok()) << publish_first.status();
    if (rank.plane.rank() == 0) {
      group.devices().Enqueue(rank.stream.get(), [&] {
        if (!next_update_may_end) return false;
        second.assign(second.size(), 2);
        return true;
      });
    }
    auto publish_second = rank.Publish(1, 0, second.data(), second.size() * sizeof(int));
    ASSERT_TRUE(publish_second.ok()) << publish_second.status();

    EXPECT_TRUE((*publish_first)->Wait(FarDeadline()).ok());
    EXPECT_EQ(first, std::vector<int>(100, 1));
    EXPECT_FALSE(next_update_may_end && rank.plane.rank() == 0);
    if (rank.plane.rank() == 0) next_update_may_end = true;
    EXPECT_TRUE((*publish_second)->Wait(FarDeadline()).ok());
    EXPECT_EQ(second, std::vector<int>(100, 2));
    EXPECT_TRUE(rank.plane.Close(FarDeadline()).ok());
  });
}

TEST(NcclPlane, UpdateOfTheNextBucket_PublishWaitsForAPeer_RunsMeanwhile) {
  NcclGroup group(2);
  absl::Notification updated;
  RunRanks(group, 2, [&](const OnDevice& rank) {
    std::vector<int> data(100);
    if (rank.plane.rank() == 1) updated.WaitForNotification();
    auto published = rank.Publish(0, 0, data.data(), data.size() * sizeof(int));
    ASSERT_TRUE(published.ok()) << published.status();
    if (rank.plane.rank() == 0) {
      group.devices().Enqueue(rank.stream.get(), [&] {
        updated.Notify();
        return true;
      });
      group.devices().RunWhatCanRun();
      EXPECT_TRUE(updated.HasBeenNotified());
    }
    EXPECT_TRUE((*published)->Wait(FarDeadline()).ok());
    EXPECT_TRUE(rank.plane.Close(FarDeadline()).ok());
  });
}

TEST(NcclPlane, Operations_OfAllOrSomeRanks_AreOneLaunchEach) {
  NcclGroup group(3);
  RunRanks(group, 3, [&](const OnDevice& rank) {
    std::vector<float> values(4, 1);
    ASSERT_TRUE(WaitFor(rank.Reduce(0, 2, values.data(), 4)).ok());
    ASSERT_TRUE(WaitFor(rank.Publish(0, 2, values.data(), 16)).ok());
    ASSERT_TRUE(WaitFor(rank.plane.Publish(Tag(StepPhase::kPublish, 1), rank.context(), 0, {0, 1},
                                           values.data(), 16))
                    .ok());
    EXPECT_TRUE(rank.plane.Close(FarDeadline()).ok());
  });
  EXPECT_THAT(group.nccl().Launches(0),
              ElementsAre("send 16 bytes to 2", "broadcast 16 bytes from 2", "send 16 bytes to 1"));
  EXPECT_THAT(group.nccl().Launches(2), ElementsAre("receive 16 bytes from 0 + receive 16 bytes "
                                                    "from 1",
                                                    "broadcast 16 bytes from 2"));
}

TEST(NcclPlane, Reduce_BucketOfMoreThanTheWindow_IsExactInPieces) {
  constexpr int64_t kElements = 5000;
  NcclGroup group(3);
  RunRanks(
      group, 3, [](NcclPlaneOptions& options) { options.reduce_window_bytes = 8192; },
      [&](const OnDevice& rank) {
        std::vector<float> values = OrderSensitiveValues<float>(rank.plane.rank(), kElements);
        ASSERT_TRUE(WaitFor(rank.Reduce(0, 1, values.data(), kElements)).ok());
        if (rank.plane.rank() == 1) {
          EXPECT_TRUE(SameBits(values, ExpectedAverage<float>(OneGroup(3), 3, kElements)));
        }
        EXPECT_TRUE(rank.plane.Close(FarDeadline()).ok());
      });
  EXPECT_EQ(group.nccl().Launches(0),
            (std::vector<std::string>{"send 4096 bytes to 1", "send 4096 bytes to 1",
                                      "send 4096 bytes to 1", "send 4096 bytes to 1",
                                      "send 3616 bytes to 1"}));
}

TEST(NcclPlane, Reduce_NotDeterministic_SumsAsNcclDoesAndDividesOnce) {
  constexpr int64_t kElements = 5000;
  NcclGroup group(3);
  RunRanks(
      group, 3,
      [](NcclPlaneOptions& options) {
        options.deterministic = false;
        options.reduce_window_bytes = 8192;
      },
      [&](const OnDevice& rank) {
        // Whole numbers: every order gives the same sum, and 16 bits hold it.
        std::vector<float> whole(kElements), expected(kElements), averages(kElements);
        for (int64_t i = 0; i < kElements; ++i) {
          whole[i] = static_cast<float>(i % 7 + rank.plane.rank());
          expected[i] = static_cast<float>(i % 7 * 3 + 3) / 3.0f;
        }
        std::vector<uint16_t> halves(kElements);
        Narrow(DType::kBFloat16, whole.data(), kElements, halves.data());
        ASSERT_TRUE(WaitFor(rank.plane.Reduce(
                                Tag(StepPhase::kReduce, 0), rank.context(),
                                AverageOver(OneGroup(3), 1), DType::kBFloat16, halves.data(),
                                rank.plane.rank() == 1 ? averages.data() : nullptr, kElements))
                        .ok());
        std::vector<float> sensitive = OrderSensitiveValues<float>(rank.plane.rank(), kElements);
        ASSERT_TRUE(WaitFor(rank.Reduce(1, 1, sensitive.data(), kElements)).ok());
        if (rank.plane.rank() == 1) {
          EXPECT_TRUE(SameBits(averages, expected));
          EXPECT_FALSE(SameBits(sensitive, ExpectedAverage<float>(OneGroup(3), 3, kElements)))
              << "the fake sums in an order of its own";
        }
        EXPECT_TRUE(rank.plane.Close(FarDeadline()).ok());
      });
  EXPECT_THAT(group.nccl().Launches(0)[0], "sum 8192 bytes to 1");
}

TEST(NcclPlane, Operation_OnMemoryOfTheHost_GoesToTheHostPlane) {
  NcclGroup group(2);
  RunRanks(group, 2, [&](const OnDevice& rank) {
    const int64_t before = group.hosts().OperationsStarted(rank.plane.rank());
    std::vector<float> values = OrderSensitiveValues<float>(rank.plane.rank(), 100);
    ASSERT_TRUE(
        WaitFor(rank.plane.Reduce(Tag(StepPhase::kReduce), kHost, AverageOver(OneGroup(2), 0),
                                  DType::kFloat32, values.data(),
                                  rank.plane.rank() == 0 ? values.data() : nullptr, 100))
            .ok());
    if (rank.plane.rank() == 0) {
      EXPECT_TRUE(SameBits(values, ExpectedAverage<float>(OneGroup(2), 2, 100)));
    }
    EXPECT_TRUE(Barrier(rank.plane, 1).ok());
    EXPECT_EQ(group.hosts().OperationsStarted(rank.plane.rank()), before + 2);
    EXPECT_TRUE(rank.plane.Close(FarDeadline()).ok());
  });
  EXPECT_THAT(group.nccl().Launches(0), IsEmpty());
}

TEST(NcclPlane, Operation_OnAnotherDevice_IsRefusedAndBreaksNothing) {
  NcclGroup group(1);
  RunRanks(group, 1, [&](const OnDevice& rank) {
    char data = 0;
    const ExecutionContext elsewhere{"cuda:9", rank.stream.get()};
    const absl::Status refused = WaitFor(
        rank.plane.Publish(Tag(StepPhase::kPublish), elsewhere, 0, {0}, &data, sizeof data));
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("cuda:9"), HasSubstr("cuda:0")));
    EXPECT_TRUE(rank.plane.Close(FarDeadline()).ok());
  });
}

TEST(NcclPlane, Memory_GivenAtCreation_IsRegistered) {
  NcclGroup group(2, [] {
    testing::FakeNccl::Options options;
    options.busy_polls = 2;
    return options;
  }());
  std::vector<char> memory(100);
  RunRanks(
      group, 2,
      [&](NcclPlaneOptions& options) {
        options.registered = {{memory.data(), 60}, {memory.data() + 60, 40}};
      },
      [&](const OnDevice& rank) { EXPECT_TRUE(rank.plane.Close(FarDeadline()).ok()); });
  EXPECT_EQ(group.nccl().RegisteredBytes(0), 100);
  EXPECT_EQ(group.nccl().RegisteredBytes(1), 100);
}

TEST(NcclPlane, Close_EndsTheCommunicatorWithoutAnAbort) {
  NcclGroup group(2);
  RunRanks(group, 2, [&](const OnDevice& rank) {
    std::vector<char> data(10);
    auto ticket = rank.Publish(0, 0, data.data(), data.size());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    ASSERT_TRUE((*ticket)->OrderOn(rank.context()).ok());
    // What is under way is done first.
    EXPECT_TRUE(rank.plane.Close(FarDeadline()).ok());
    EXPECT_TRUE(group.nccl().IsDestroyed(rank.plane.rank()));
    EXPECT_TRUE(rank.plane.Close(FarDeadline()).ok()) << "once more";
    EXPECT_TRUE(absl::IsFailedPrecondition(rank.Publish(1, 0, data.data(), 1).status()));
  });
  EXPECT_FALSE(group.nccl().HasAborted(0));
}

// --- Losses. The fake plane of the hosts knows who is gone; NCCL says at most that somebody is.

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

TEST(NcclPlane, PeerLost_NobodyWaits_StatusNamesItAndStreamsGoOn) {
  NcclGroup group(2);
  Meeting under_way(2);
  RunRanks(group, 2, [&](const OnDevice& rank) {
    std::vector<char> data(1000);
    Tickets tickets;
    if (rank.plane.rank() == 0) {
      auto ticket = rank.Publish(0, 1, data.data(), data.size());
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      ASSERT_TRUE((*ticket)->OrderOn(rank.context()).ok());
      tickets.push_back(*std::move(ticket));
    }
    std::atomic<bool> stream_went_on{false};
    group.devices().Enqueue(rank.stream.get(), [&] { return stream_went_on = true; });
    under_way.Attend();
    if (rank.plane.rank() == 1) return;  // destroys the plane
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

// --- Creation.

TEST(NcclPlane, Create_TwoRanksOnOneGpu_AllAreToldWhich) {
  NcclGroup group(3);
  for (const absl::Status& answer : CreateAll(group, 3, [&](NcclPlaneOptions& options) {
         if (options.rank == 2) options.device = group.devices().Add("cuda:0", "GPU-0");
       })) {
    EXPECT_TRUE(absl::IsFailedPrecondition(answer)) << answer;
    EXPECT_THAT(std::string(answer.message()),
                AllOf(HasSubstr("ranks 0 and 2 are on one GPU"), HasSubstr("GPU-0")));
  }
}

TEST(NcclPlane, Create_ARankHasNoDriver_AllAreToldWhich) {
  NcclGroup group(3);
  for (const absl::Status& answer : CreateAll(group, 3, [](NcclPlaneOptions& options) {
         if (options.rank == 1) {
           options.device = absl::FailedPreconditionError("no CUDA driver on this host");
         }
       })) {
    EXPECT_TRUE(absl::IsFailedPrecondition(answer)) << answer;
    EXPECT_THAT(std::string(answer.message()), HasSubstr("rank 1: no CUDA driver on this host"));
  }
}

TEST(NcclPlane, Create_OptionsOrVersionsDiffer_AllAreToldWhich) {
  const std::vector<std::pair<const char*, std::function<void(NcclGroup&, NcclPlaneOptions&)>>>
      kDifferences = {
          {"deterministic",
           [](NcclGroup&, NcclPlaneOptions& options) { options.deterministic = false; }},
          {"reduce_window_bytes",
           [](NcclGroup&, NcclPlaneOptions& options) { options.reduce_window_bytes = 2 << 20; }},
          {"version", [](NcclGroup& group, NcclPlaneOptions& options) {
             options.nccl = group.nccl().MakeApi(options.rank, 22007);
           }}};
  for (const auto& [what, make] : kDifferences) {
    NcclGroup group(2);
    for (const absl::Status& answer :
         CreateAll(group, 2, [&, make = make](NcclPlaneOptions& options) {
           if (options.rank == 1) make(group, options);
         })) {
      EXPECT_TRUE(errors::IsRanksDisagree(answer)) << answer;
      EXPECT_EQ(errors::RanksOf(answer), std::vector<Rank>{1}) << answer;
      EXPECT_THAT(std::string(answer.message()), HasSubstr(what));
    }
  }
}

TEST(NcclPlane, Create_WindowTooSmallOrTooManyRanks_IsRefused) {
  NcclGroup group(2);
  NcclPlaneOptions options = group.OptionsOf(0);
  options.reduce_window_bytes = 100;
  EXPECT_TRUE(absl::IsInvalidArgument(group.Make(options).status()));

  NcclGroup large(300);
  options = large.OptionsOf(0);
  options.reduce_window_bytes = size_t{64} << 20;
  const absl::Status refused = large.Make(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 256 ranks"));
}

// Of a rank that comes to the meeting and cannot connect, once all others are about to.
class Disconnected final : public NcclApi {
 public:
  explicit Disconnected(std::function<void()> await_others)
      : await_others_(std::move(await_others)) {}

  int version() const override { return 22809; }
  absl::StatusOr<std::string> NewUniqueId() override { return absl::InternalError("no network"); }
  absl::StatusOr<std::unique_ptr<NcclCommunicator>> Connect(absl::string_view, Rank, int) override {
    await_others_();
    return absl::InternalError("no network");
  }
  absl::Status GroupStart() override { return absl::InternalError("no network"); }
  absl::Status GroupEnd() override { return absl::InternalError("no network"); }

 private:
  const std::function<void()> await_others_;
};

TEST(NcclPlane, Create_ARankCannotConnect_OthersNameIt) {
  NcclGroup group(3);
  const std::vector<absl::Status> answers = CreateAll(group, 3, [&](NcclPlaneOptions& options) {
    if (options.rank != 1) return;
    options.nccl = std::make_shared<Disconnected>([&] {
      EXPECT_TRUE(
          Eventually([&] { return group.nccl().HasConnected(0) && group.nccl().HasConnected(2); }));
    });
  });
  EXPECT_EQ(answers[1], absl::InternalError("no network"));
  for (const Rank rank : {0, 2}) {
    EXPECT_EQ(errors::RanksOf(answers[rank]), std::vector<Rank>{1}) << answers[rank];
    EXPECT_TRUE(Eventually([&] { return group.nccl().HasAborted(rank); }));
  }
}

}  // namespace
}  // namespace optshard

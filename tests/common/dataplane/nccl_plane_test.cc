// What is particular to the operations of the NCCL plane; the conformance suite has the rest.
#include "common/dataplane/nccl/nccl_plane.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/dtype_conversion.h"
#include "gmock/gmock.h"
#include "tests/common/dataplane/nccl_group.h"
#include "tests/common/dataplane/nccl_ranks.h"
#include "tests/common/dataplane/order_sensitive.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Tickets = std::vector<std::unique_ptr<Ticket>>;

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

}  // namespace
}  // namespace optshard

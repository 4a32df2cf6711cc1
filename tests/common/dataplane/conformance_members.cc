// Operations of some of the ranks.
#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "common/clock.h"
#include "common/errors.h"
#include "gmock/gmock.h"
#include "tests/common/dataplane/conformance.h"
#include "tests/common/dataplane/conformance_operations.h"
#include "tests/common/dataplane/order_sensitive.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kElements = 70003;

// Every set of the ranks that is not empty.
std::vector<std::vector<Rank>> Subsets(int world_size) {
  std::vector<std::vector<Rank>> subsets;
  for (int bits = 1; bits < 1 << world_size; ++bits) {
    subsets.emplace_back();
    for (Rank rank = 0; rank < world_size; ++rank) {
      if ((bits >> rank & 1) != 0) subsets.back().push_back(rank);
    }
  }
  return subsets;
}

// The highest member comes first, in a group of its own; the others are one group.
Reduction LastAlone(std::vector<Rank> members, int divisor) {
  Reduction reduction;
  std::rotate(members.begin(), members.end() - 1, members.end());
  reduction.owner = members.back();
  reduction.group_sizes = {1};
  if (members.size() > 1) reduction.group_sizes.push_back(static_cast<int>(members.size()) - 1);
  reduction.members = std::move(members);
  reduction.divisor = divisor;
  return reduction;
}

// The definition, one element at a time.
std::vector<float> Expected(const Reduction& reduction, int seed) {
  std::vector<float> expected(kElements);
  size_t next = 0;
  for (size_t group = 0; group < reduction.group_sizes.size(); ++group) {
    std::vector<float> sum =
        OrderSensitiveValues<float>(reduction.members[next++], kElements, seed);
    for (int member = 1; member < reduction.group_sizes[group]; ++member) {
      const std::vector<float> more =
          OrderSensitiveValues<float>(reduction.members[next++], kElements, seed);
      for (int64_t i = 0; i < kElements; ++i) sum[i] = sum[i] + more[i];
    }
    for (int64_t i = 0; i < kElements; ++i) {
      expected[i] = group == 0 ? sum[i] : expected[i] + sum[i];
    }
  }
  for (float& value : expected) value /= static_cast<float>(reduction.divisor);
  return expected;
}

absl::Status RefusedReduce(DataPlane& plane, const Reduction& reduction) {
  float value = 1;
  return WaitFor(
      plane.Reduce(Tag(StepPhase::kReduce), kHost, reduction, DType::kFloat32, &value, &value, 1));
}

}  // namespace

TEST_P(DataPlaneConformance, Reduce_OfSomeRanks_SumsTheirsAndDividesAsItIsTold) {
  Run([&](DataPlane& plane) {
    int32_t bucket = 0;
    std::vector<std::unique_ptr<Ticket>> tickets;
    std::vector<std::vector<float>> memory;
    memory.reserve(1000);
    for (const std::vector<Rank>& members : Subsets(world_size())) {
      for (const int divisor : {1, 2, 3}) {
        const Reduction reduction = LastAlone(members, divisor);
        float* contribution = nullptr;
        float* result = nullptr;
        if (reduction.Has(plane.rank())) {
          memory.push_back(OrderSensitiveValues<float>(plane.rank(), kElements, bucket));
          contribution = result = memory.back().data();
        }
        auto ticket = plane.Reduce(Tag(StepPhase::kReduce, bucket), kHost, reduction,
                                   DType::kFloat32, contribution,
                                   reduction.owner == plane.rank() ? result : nullptr, kElements);
        ASSERT_TRUE(ticket.ok()) << ticket.status();
        ASSERT_TRUE((*ticket)->Wait(FarDeadline()).ok());
        if (reduction.owner == plane.rank()) {
          EXPECT_TRUE(SameBits(memory.back(), Expected(reduction, bucket)))
              << "bucket " << bucket << ", divisor " << divisor;
        }
        ++bucket;
      }
    }
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
}

TEST_P(DataPlaneConformance, Publish_ToSomeRanks_LeavesTheOthersMemoryAlone) {
  Run([&](DataPlane& plane) {
    int32_t bucket = 0;
    for (const std::vector<Rank>& members : Subsets(world_size())) {
      for (const size_t elements : {size_t{1}, size_t{1000}, size_t{300000}}) {
        const Rank owner = members[bucket % members.size()];
        const std::vector<int> expected(elements, 100 + bucket);
        const bool takes_part =
            std::find(members.begin(), members.end(), plane.rank()) != members.end();
        std::vector<int> data = owner == plane.rank() ? expected : std::vector<int>(elements, -1);
        ASSERT_TRUE(WaitFor(plane.Publish(Tag(StepPhase::kPublish, bucket), kHost, owner, members,
                                          data.data(), elements * sizeof(int)))
                        .ok());
        EXPECT_TRUE(data == (takes_part ? expected : std::vector<int>(elements, -1)))
            << "bucket " << bucket;
        ++bucket;
      }
    }
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
}

// As a step of several nodes makes them: each operation has other members, and all are under way.
TEST_P(DataPlaneConformance, Operations_OfManySubsetsUnderWay_AreExact) {
  const std::vector<std::vector<Rank>> subsets = Subsets(world_size());
  Run([&](DataPlane& plane) {
    std::vector<std::unique_ptr<Ticket>> tickets;
    std::vector<Reduction> reductions;
    std::vector<std::vector<float>> sums;
    for (size_t i = 0; i < subsets.size(); ++i) {
      reductions.push_back(LastAlone(subsets[i], world_size()));
      sums.push_back(OrderSensitiveValues<float>(plane.rank(), kElements, static_cast<int>(i)));
    }
    for (size_t i = 0; i < subsets.size(); ++i) {
      auto ticket =
          plane.Reduce(Tag(StepPhase::kReduce, static_cast<int32_t>(i)), kHost, reductions[i],
                       DType::kFloat32, sums[i].data(),
                       reductions[i].owner == plane.rank() ? sums[i].data() : nullptr, kElements);
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      tickets.push_back(*std::move(ticket));
    }
    for (auto& ticket : tickets) ASSERT_TRUE(ticket->Wait(FarDeadline()).ok());
    tickets.clear();
    for (size_t i = 0; i < subsets.size(); ++i) {
      auto ticket =
          plane.Publish(Tag(StepPhase::kPublish, static_cast<int32_t>(i)), kHost,
                        reductions[i].owner, subsets[i], sums[i].data(), kElements * sizeof(float));
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      tickets.push_back(*std::move(ticket));
    }
    while (!tickets.empty()) {
      ASSERT_TRUE(tickets.back()->Wait(FarDeadline()).ok());
      tickets.pop_back();
    }
    for (size_t i = 0; i < subsets.size(); ++i) {
      if (!reductions[i].Has(plane.rank())) continue;
      EXPECT_TRUE(SameBits(sums[i], Expected(reductions[i], static_cast<int>(i)))) << i;
    }
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
}

TEST_P(DataPlaneConformance, Operation_MembersThatCannotBe_AreRefusedNamingThem) {
  Run([&](DataPlane& plane) {
    Reduction reduction = AverageOver(OneGroup(world_size()), 0);
    reduction.members.push_back(world_size());
    ++reduction.group_sizes[0];
    absl::Status refused = RefusedReduce(plane, reduction);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrCat("member ", world_size(), " is not a rank")));

    reduction.members.back() = 0;
    refused = RefusedReduce(plane, reduction);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("rank 0 is twice"));

    reduction = AverageOver(OneGroup(world_size()), 0);
    reduction.group_sizes.push_back(1);
    refused = RefusedReduce(plane, reduction);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("expected as many in all"));

    reduction = AverageOver(OneGroup(world_size()), 0);
    reduction.divisor = 0;
    refused = RefusedReduce(plane, reduction);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("divided by 0"));

    int data = 0;
    refused = WaitFor(plane.Publish(Tag(StepPhase::kPublish), kHost, 0, {}, &data, sizeof data));
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("owner 0 is not among the members"));
    EXPECT_TRUE(plane.Close(FarDeadline()).ok()) << "a refusal breaks nothing";
  });
}

TEST_P(DataPlaneWithPeers, NonMemberDoesNotCome_OthersFinishWithoutIt) {
  if (world_size() < 3) GTEST_SKIP() << "there is no third rank";
  const Rank absent = world_size() - 1;
  std::vector<Rank> members(world_size() - 1);
  std::iota(members.begin(), members.end(), 0);
  absl::BlockingCounter finished(world_size() - 1);
  Run([&](DataPlane& plane) {
    if (plane.rank() == absent) finished.Wait();
    std::vector<float> values = OrderSensitiveValues<float>(plane.rank(), kElements);
    const Reduction reduction = LastAlone(members, 2);
    ASSERT_TRUE(
        WaitFor(plane.Reduce(Tag(StepPhase::kReduce), kHost, reduction, DType::kFloat32,
                             values.data(),
                             plane.rank() == reduction.owner ? values.data() : nullptr, kElements))
            .ok());
    ASSERT_TRUE(WaitFor(plane.Publish(Tag(StepPhase::kPublish), kHost, reduction.owner, members,
                                      values.data(), kElements * sizeof(float)))
                    .ok());
    if (plane.rank() != absent) {
      EXPECT_TRUE(SameBits(values, Expected(reduction, 1)));
      finished.DecrementCount();
    }
    EXPECT_TRUE(Barrier(plane, 0).ok());
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
}

// Whether they finish what it has no part in is a race; that they name it and do not hang is not.
TEST_P(DataPlaneWithPeers, NonMemberIsGone_OthersNameIt) {
  if (world_size() < 3) GTEST_SKIP() << "there is no third rank";
  const Rank lost = world_size() - 1;
  std::vector<Rank> members(world_size() - 1);
  std::iota(members.begin(), members.end(), 0);
  Meeting all_connected(world_size());
  Run([&](DataPlane& plane) {
    EXPECT_TRUE(Barrier(plane, 0).ok());
    all_connected.Attend();
    if (plane.rank() == lost) return;  // destroys the plane
    std::vector<char> data(1 << 16);
    absl::Status status;
    const absl::Time start = Clock::Monotonic().Now();
    for (int32_t bucket = 0; status.ok() && Clock::Monotonic().Now() < start + absl::Seconds(30);
         ++bucket) {
      status = WaitFor(plane.Publish(Tag(StepPhase::kPublish, bucket), kHost, 0, members,
                                     data.data(), data.size()));
    }
    EXPECT_TRUE(errors::IsPeerLost(status)) << status;
    EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{lost}) << status;
  });
}

}  // namespace optshard

#include "server/shard/engine/row_mark_gather.h"

#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/errors.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_plane.h"

namespace optshard::testing {
namespace {

constexpr int kRanks = 3;

// Each rank's word is another one at each place.
std::vector<uint64_t> MarksOf(Rank rank, size_t words) {
  std::vector<uint64_t> marks(words);
  for (size_t i = 0; i < words; ++i) marks[i] = i * kRanks + static_cast<uint64_t>(rank);
  return marks;
}

using Gathered = std::vector<absl::StatusOr<std::vector<uint64_t>>>;

Gathered Gather(FakeHub& hub, size_t words) {
  Gathered gathered(kRanks);
  std::vector<std::unique_ptr<DataPlane>> planes;
  for (Rank rank = 0; rank < kRanks; ++rank) planes.push_back(hub.MakePlane(rank));
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      gathered[rank] = GatherRowMarks(*planes[rank], {1, 7, 0, StepPhase::kControl},
                                      MarksOf(rank, words), absl::Now() + absl::Seconds(20));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return gathered;
}

TEST(RowMarkGatherTest, Gather_UpToAndBeyondOneOperation_AllRanksHaveTheMarksOfAllByRank) {
  for (const auto mode : {FakeHub::Mode::kImmediate, FakeHub::Mode::kDelayed}) {
    for (const size_t words :
         {size_t{1}, kWordsOfAGather, kWordsOfAGather + 1, 2 * kWordsOfAGather + 5}) {
      FakeHub hub({kRanks, mode, {}});
      std::vector<uint64_t> expected;
      for (Rank rank = 0; rank < kRanks; ++rank) {
        const std::vector<uint64_t> marks = MarksOf(rank, words);
        expected.insert(expected.end(), marks.begin(), marks.end());
      }
      for (const auto& marks : Gather(hub, words)) {
        ASSERT_TRUE(marks.ok()) << marks.status();
        EXPECT_TRUE(*marks == expected) << words << " words";
      }
      const auto operations = static_cast<int64_t>((words - 1) / kWordsOfAGather) + 1;
      EXPECT_EQ(hub.OperationsStarted(0), operations) << words << " words";
    }
  }
}

TEST(RowMarkGatherTest, Gather_RankIsLostInALaterOperation_TheOthersAreToldWhich) {
  FakeHub hub({kRanks, FakeHub::Mode::kImmediate, {}});
  hub.KillAt(1, 1);
  const Gathered gathered = Gather(hub, 2 * kWordsOfAGather);
  for (const Rank rank : {0, 2}) {
    EXPECT_TRUE(errors::IsPeerLost(gathered[rank].status())) << gathered[rank].status();
    EXPECT_EQ(errors::RanksOf(gathered[rank].status()), std::vector<Rank>{1});
  }
}

}  // namespace
}  // namespace optshard::testing

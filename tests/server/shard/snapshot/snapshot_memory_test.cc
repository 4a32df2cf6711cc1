#include "server/shard/snapshot/snapshot_memory.h"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPage = 4096;

std::shared_ptr<SnapshotMemory> Memory(int64_t bytes, bool at_start = false) {
  return *SnapshotMemory::Create({bytes, at_start, 3});
}

TEST(SnapshotMemoryTest, Pieces_DoNotOverlap_AndComeFromTheSameMemoryAgain) {
  for (const bool at_start : {false, true}) {
    const auto memory = Memory(4 * kPage, at_start);
    auto first = *memory->Take(kPage + 1);
    auto second = *memory->Take(2 * kPage);
    EXPECT_GE(second.get(), first.get() + kPage + 1);
    std::memset(first.get(), 1, kPage + 1);
    std::memset(second.get(), 2, 2 * kPage);
    EXPECT_EQ(first.get()[kPage], 1);
    EXPECT_EQ(memory->used_bytes(), 3 * kPage + 1);
    const char* const before = first.get();
    first.reset();
    EXPECT_EQ(memory->used_bytes(), 2 * kPage);
    EXPECT_EQ((*memory->Take(2 * kPage)).get(), before);
  }
}

TEST(SnapshotMemoryTest, GapThatIsTooSmall_IsNotUsed) {
  const auto memory = Memory(8 * kPage);
  auto first = *memory->Take(kPage);
  const auto second = *memory->Take(kPage);
  first.reset();
  EXPECT_EQ((*memory->Take(2 * kPage)).get(), second.get() + kPage);
  EXPECT_EQ((*memory->Take(kPage)).get(), second.get() - kPage);
}

TEST(SnapshotMemoryTest, TooLittle_IsRefusedWithNeedAndLimit) {
  const auto memory = Memory(2 * kPage);
  const auto piece = *memory->Take(100);
  const absl::Status refused = memory->Take(kPage + 1).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("rank 3 needs 4097 bytes for copies; its snapshots "
                        "may have 8192 bytes (snapshot_memory), of which 100 are used"));
  EXPECT_TRUE(memory->Take(kPage).ok());
  EXPECT_FALSE(memory->Take(std::numeric_limits<int64_t>::max()).ok());
}

TEST(SnapshotMemoryTest, Nothing_NeedsNoMemory) {
  EXPECT_EQ(*Memory(0, true)->Take(0), nullptr);
  EXPECT_FALSE(Memory(0)->Take(1).ok());
}

TEST(SnapshotMemoryTest, MoreThanTheMachineHas_IsRefusedAtTheStart) {
  EXPECT_EQ(SnapshotMemory::Create({int64_t{1} << 60, true, 0}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(SnapshotMemoryTest, IsOfTheBudget_FromWhenItIsTakenUntilItGoes) {
  MemoryBudget budget(10 * kPage);
  {
    const auto later = *SnapshotMemory::Create({6 * kPage, false, 3, &budget});
    EXPECT_EQ(budget.reserved_bytes(), 0);
    EXPECT_TRUE(later->Take(1).ok());
    EXPECT_TRUE(later->Take(1).ok());
    EXPECT_EQ(budget.reserved_bytes(), 6 * kPage);
    const absl::Status refused = SnapshotMemory::Create({6 * kPage, true, 3, &budget}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("the snapshots of rank 3 needs 24576"));
    EXPECT_EQ(budget.reserved_bytes(), 6 * kPage);
  }
  EXPECT_EQ(budget.reserved_bytes(), 0);
}

// Of pages that the system has given already.
int64_t PagesThere(const SnapshotMemory::Piece& piece, int64_t pages) {
  std::vector<unsigned char> there(pages);
  EXPECT_EQ(mincore(piece.get(), pages * kPage, there.data()), 0);
  return std::count_if(there.begin(), there.end(), [](unsigned char page) { return page & 1; });
}

TEST(SnapshotMemoryTest, NoSnapshot_WaitsForTheSystemToGivePages) {
  constexpr int64_t kPages = 64;
  for (const bool at_start : {false, true}) {
    const auto memory = Memory(kPages * kPage, at_start);
    // The second one's begin where the first one's have ended.
    auto first = *memory->Take(10 * kPage - 1);
    EXPECT_EQ(PagesThere(first, 10), 10);
    auto second = *memory->Take(20 * kPage);
    EXPECT_EQ(PagesThere(second, 20), 20);
    first.reset();
    second.reset();
    EXPECT_EQ(PagesThere(*memory->Take(kPages * kPage), kPages), kPages);
  }
}

TEST(SnapshotMemoryTest, Piece_OutlivesItsOwner) {
  auto memory = Memory(kPage);
  const auto piece = *memory->Take(kPage);
  memory.reset();
  std::memset(piece.get(), 1, kPage);
}

}  // namespace
}  // namespace optshard

#include "server/shard/state/mapped_memory.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(MappedMemory_Allocated, IsZeroAndAlignedAndMoves) {
  constexpr size_t kBytes = (5 << 20) + 3;
  absl::StatusOr<MappedMemory> allocated = MappedMemory::Allocate(kBytes, "a test");
  ASSERT_TRUE(allocated.ok()) << allocated.status();
  MappedMemory memory = std::move(*allocated);
  EXPECT_EQ(memory.bytes(), kBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % (2 << 20), 0);
  char* const data = static_cast<char*>(memory.data());
  EXPECT_EQ(data[0], 0);
  EXPECT_EQ(data[kBytes - 1], 0);
  data[kBytes - 1] = 1;
  MappedMemory moved = std::move(memory);
  EXPECT_EQ(static_cast<char*>(moved.data())[kBytes - 1], 1);
}

TEST(MappedMemory_NoBytes, MapsNothing) {
  const absl::StatusOr<MappedMemory> memory = MappedMemory::Allocate(0, "nothing");
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->data(), nullptr);
}

TEST(MappedMemory_MoreThanThereIs, IsExhaustedAndSaysOfWhat) {
  for (const size_t bytes : {size_t{1} << 50, std::numeric_limits<size_t>::max()}) {
    const absl::StatusOr<MappedMemory> memory = MappedMemory::Allocate(bytes, "the slots");
    EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(memory.status().message()), ::testing::HasSubstr("the slots"));
  }
}

}  // namespace
}  // namespace optshard

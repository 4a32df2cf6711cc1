#include "server/shard/state/shard_memory.h"

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace optshard {
namespace {

std::string Pattern(size_t bytes, int seed) {
  std::string pattern(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<char>(i / 4096 * 31 + i + seed);
  return pattern;
}

ShardMemory Filled(const std::string& bytes) {
  ShardMemory memory = ShardMemory::Private({bytes.size(), 64}, "a test").value();
  std::memcpy(memory.slots, bytes.data(), bytes.size());
  return memory;
}

std::string SlotsOf(const ShardMemory& memory) {
  return std::string(static_cast<const char*>(memory.slots), memory.bytes.slots);
}

constexpr size_t kSizes[] = {64, 4096 + 64, (size_t{2} << 20) - 64, size_t{2} << 20,
                             (size_t{6} << 20) + 8192 + 64};

TEST(ShardMemoryTest, TakenSlots_AreThoseOfTheOther_InTheSamePlace) {
  for (const bool is_private : {true, false}) {
    for (const size_t bytes : kSizes) {
      ShardMemory memory = Filled(Pattern(bytes, 1));
      // As of memory that a keeper has, too.
      memory.is_private = is_private;
      const void* const place = memory.slots;
      for (int seed = 2; seed < 5; ++seed) {
        ShardMemory from = Filled(Pattern(bytes, seed));
        memory.TakeSlots(from);
        EXPECT_EQ(memory.slots, place);
        EXPECT_TRUE(SlotsOf(memory) == Pattern(bytes, seed)) << bytes;
        // Both can be written.
        std::memset(from.slots, 0, bytes);
        EXPECT_TRUE(SlotsOf(memory) == Pattern(bytes, seed)) << bytes;
      }
      std::memset(memory.slots, 0, bytes);
    }
  }
}

TEST(ShardMemoryTest, SlotsThatAreReadMeanwhile_AreOldOrNew) {
  constexpr size_t kBytes = size_t{4} << 20;
  ShardMemory memory = Filled(std::string(kBytes, 1));
  std::atomic<bool> done{false};
  std::atomic<int> others{0};
  std::thread reader([&] {
    const char* const bytes = static_cast<const char*>(memory.slots);
    while (!done) {
      for (size_t i = 0; i < kBytes; i += 4096) {
        const char value = __atomic_load_n(bytes + i, __ATOMIC_RELAXED);
        if (value < 1 || value > 20) ++others;
      }
    }
  });
  for (char value = 2; value <= 20; ++value) {
    ShardMemory from = Filled(std::string(kBytes, value));
    memory.TakeSlots(from);
  }
  done = true;
  reader.join();
  EXPECT_EQ(others, 0);
  EXPECT_TRUE(SlotsOf(memory) == std::string(kBytes, 20));
}

}  // namespace
}  // namespace optshard

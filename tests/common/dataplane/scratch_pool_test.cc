#include "common/dataplane/gloo/scratch_pool.h"

#include <utility>

#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(ScratchPool, ReturnedBlock_IsUsedAgain) {
  ScratchPool pool(100);
  auto first = pool.Take(60);
  ASSERT_TRUE(first.has_value());
  const char* const address = first->data.get();
  pool.Return(*std::move(first));
  const auto second = pool.Take(50);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->data.get(), address);
  EXPECT_EQ(pool.allocated_bytes(), 60u);
}

TEST(ScratchPool, LimitReached_GivesNothingUntilABlockReturns) {
  ScratchPool pool(100);
  auto first = pool.Take(60);
  EXPECT_FALSE(pool.Take(60).has_value());
  pool.Return(*std::move(first));
  EXPECT_TRUE(pool.Take(60).has_value());
}

TEST(ScratchPool, LargerThanTheLimit_GoesAlone) {
  ScratchPool pool(100);
  auto large = pool.Take(500);
  ASSERT_TRUE(large.has_value());
  EXPECT_FALSE(pool.Take(1).has_value());
  pool.Return(*std::move(large));
  EXPECT_TRUE(pool.Take(1).has_value());
}

TEST(ScratchPool, FreeBlocksTooSmall_MakeRoomForALargerOne) {
  ScratchPool pool(100);
  pool.Return(*pool.Take(40));
  auto larger = pool.Take(90);
  ASSERT_TRUE(larger.has_value());
  EXPECT_EQ(pool.allocated_bytes(), 90u);
}

}  // namespace
}  // namespace optshard

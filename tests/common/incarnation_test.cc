#include "common/incarnation.h"

#include <gtest/gtest.h>

namespace optshard {
namespace {

constexpr Epoch kEpoch = 1'763'782'129'123;

TEST(Incarnation, EpochAndCount_ComeBack) {
  const Incarnation second = FirstIncarnation(kEpoch) + 1;
  EXPECT_EQ(EpochOf(second), kEpoch);
  EXPECT_EQ(CountOf(second), 2u);
  EXPECT_EQ(IncarnationText(second), "1763782129123.2");
}

TEST(Incarnation, LaterEpoch_IsHigher) {
  EXPECT_GT(FirstIncarnation(kEpoch + 1), FirstIncarnation(kEpoch) + 1000);
}

TEST(Incarnation, NoEpoch_IsItsCount) { EXPECT_EQ(IncarnationText(3), "3"); }

}  // namespace
}  // namespace optshard

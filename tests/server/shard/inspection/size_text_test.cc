#include "server/shard/inspection/size_text.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(SizeText_AnySize, HasTheUnitThatReadsBest) {
  EXPECT_EQ(SizeText(0), "0 B");
  EXPECT_EQ(SizeText(1023), "1023 B");
  EXPECT_EQ(SizeText(1024), "1.0 KiB");
  EXPECT_EQ(SizeText(5120), "5.0 KiB");
  EXPECT_EQ(SizeText((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(SizeText(320000000), "305.2 MiB");
  EXPECT_EQ(SizeText(int64_t{5} << 40), "5120.0 GiB");
}

}  // namespace
}  // namespace optshard

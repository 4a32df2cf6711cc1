#include "server/node/byte_size.h"

#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(ByteSize_NumberAndUnit_IsParsed, Exactly) {
  EXPECT_EQ(*ParseByteSize("1"), 1);
  EXPECT_EQ(*ParseByteSize("17B"), 17);
  EXPECT_EQ(*ParseByteSize("8GiB"), int64_t{8} << 30);
  EXPECT_EQ(*ParseByteSize("8 GiB"), int64_t{8} << 30);
  EXPECT_EQ(*ParseByteSize("512MiB"), int64_t{512} << 20);
  EXPECT_EQ(*ParseByteSize("1.5KiB"), 1536);
  EXPECT_EQ(*ParseByteSize("2TiB"), int64_t{2} << 40);
  EXPECT_EQ(*ParseByteSize("2TB"), 2000000000000);
}

TEST(ByteSize_AnythingElse_IsRefused, ShowingIt) {
  for (const char* text :
       {"", "GiB", "-1GiB", "0", "0.1", "8GB8", "8gib", "1e400GiB", "99999999TiB", "1..2MB"}) {
    const absl::Status status = ParseByteSize(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_NE(status.message().find(text), absl::string_view::npos);
  }
}

}  // namespace
}  // namespace optshard

#include "common/page_token.h"

#include <gtest/gtest.h>

#include <string>

namespace optshard {
namespace {

TEST(ParsePageToken, TokenThatWasMade_IsItsNumber) {
  for (const int64_t first : {int64_t{0}, int64_t{1}, int64_t{99}, INT64_MAX}) {
    EXPECT_EQ(ParsePageToken(PageToken(first), "ListThings").value(), first);
  }
  EXPECT_EQ(ParsePageToken("", "ListThings").value(), 0);
}

TEST(ParsePageToken, ForeignToken_IsRefusedByCall) {
  for (const char* token : {"abc", "-1", "1 ", " 1", "01", "+1", "99999999999999999999"}) {
    const absl::Status refused = ParsePageToken(token, "ListThings").status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << token;
  }
  EXPECT_EQ(ParsePageToken(std::string(1000, 'x'), "ListThings").status().message(),
            "page_token is \"" + std::string(40, 'x') +
                "\", expected a next_page_token that ListThings has returned");
}

TEST(PageSize, Asked_IsWithinTheLimits) {
  EXPECT_EQ(PageSize(0, 10, 100).value(), 10);
  EXPECT_EQ(PageSize(1, 10, 100).value(), 1);
  EXPECT_EQ(PageSize(101, 10, 100).value(), 100);
  EXPECT_EQ(PageSize(-1, 10, 100).status().message(),
            "page_size is -1, expected 0 (for 10) to 100");
}

}  // namespace
}  // namespace optshard

#include "server/node/rank_set.h"

#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(RankSet_NumbersAndRanges_AreParsed, AndWrittenShort) {
  EXPECT_EQ(*ParseRankSet("0-3"), (std::set<Rank>{0, 1, 2, 3}));
  EXPECT_EQ(*ParseRankSet("0,2-5"), (std::set<Rank>{0, 2, 3, 4, 5}));
  EXPECT_EQ(*ParseRankSet("7"), std::set<Rank>{7});
  EXPECT_EQ(*ParseRankSet("4-4"), std::set<Rank>{4});
  for (const char* text : {"0-3", "0,2-5", "7", "0-1,3-4,9"}) {
    EXPECT_EQ(RankSetText(*ParseRankSet(text)), text);
  }
  EXPECT_EQ(RankSetText({}), "");
}

TEST(RankSet_AnythingElse_IsRefused, NamingThePart) {
  for (const char* text :
       {"", "a", "-1", "1-", "3-1", "1,,2", "1,1", "0-3,2", "0-100000", "1-2-3", "1.5"}) {
    const absl::Status status = ParseRankSet(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
  }
  EXPECT_NE(ParseRankSet("1,3-x").status().message().find("\"3-x\""), absl::string_view::npos);
}

}  // namespace
}  // namespace optshard

#include "server/node/rank_set.h"

#include <string>

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

TEST(RankSet_SoManyOfANode_AreThoseAfterTheNodesBefore, WhichHaveAsMany) {
  EXPECT_EQ(*ParseRankSet("4@0"), (std::set<Rank>{0, 1, 2, 3}));
  EXPECT_EQ(*ParseRankSet("4@1"), (std::set<Rank>{4, 5, 6, 7}));
  EXPECT_EQ(*ParseRankSet("1@7"), std::set<Rank>{7});
  EXPECT_EQ(*ParseRankSet("2@1,9"), (std::set<Rank>{2, 3, 9}));
  std::set<Rank> all;
  for (int node = 0; node < 5; ++node) {
    all.merge(*ParseRankSet("3@" + std::to_string(node)));
  }
  EXPECT_EQ(RankSetText(all), "0-14");
  EXPECT_EQ(RankSetText(*ParseRankSet("1@2147483646")), "2147483646");
}

TEST(RankSet_AnythingElse_IsRefused, NamingThePart) {
  for (const char* text :
       {"",         "a",          "-1",    "1-",  "3-1",   "1,,2",   "1,1",          "0-3,2",
        "0-100000", "2147483647", "1-2-3", "1.5", "@",     "4@",     "@1",           "0@1",
        "-1@1",     "4@-1",       "4@1@2", "4@x", "4@1-2", "5000@0", "2@1073741824", "1@2147483647",
        "4@0,3"}) {
    const absl::Status status = ParseRankSet(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
  }
  EXPECT_NE(ParseRankSet("1,3-x").status().message().find("\"3-x\""), absl::string_view::npos);
}

}  // namespace
}  // namespace optshard

#include "common/name_glob.h"

#include <gtest/gtest.h>

#include <string>

namespace optshard {
namespace {

TEST(MatchesGlob, PlainText_MatchesOnlyItself) {
  EXPECT_TRUE(MatchesGlob("fc.bias", "fc.bias"));
  EXPECT_FALSE(MatchesGlob("fc.bias2", "fc.bias"));
  EXPECT_FALSE(MatchesGlob("fc.bia", "fc.bias"));
  EXPECT_FALSE(MatchesGlob("fcxbias", "fc.bias"));
  EXPECT_TRUE(MatchesGlob("a[0]\\", "a[0]\\"));
}

TEST(MatchesGlob, NoPattern_MatchesAll) {
  EXPECT_TRUE(MatchesGlob("", ""));
  EXPECT_TRUE(MatchesGlob("fc.bias", ""));
  EXPECT_TRUE(MatchesGlob("fc.bias", "*"));
}

TEST(MatchesGlob, Stars_StandForAnyText) {
  EXPECT_TRUE(MatchesGlob("h.3.attn.weight", "h.*.weight"));
  EXPECT_TRUE(MatchesGlob("h..weight", "h.*.weight"));
  EXPECT_FALSE(MatchesGlob("h.weight", "h.*.weight"));
  EXPECT_TRUE(MatchesGlob("ababac", "*abac"));
  EXPECT_TRUE(MatchesGlob("ababac", "**b*c*"));
  EXPECT_FALSE(MatchesGlob("ababac", "*b*cc"));
  EXPECT_FALSE(MatchesGlob("ab", "a*b*b"));
}

TEST(MatchesGlob, QuestionMark_StandsForOneCharacter) {
  EXPECT_TRUE(MatchesGlob("h.3", "h.?"));
  EXPECT_FALSE(MatchesGlob("h.13", "h.?"));
  EXPECT_FALSE(MatchesGlob("h.", "h.?"));
  EXPECT_TRUE(MatchesGlob("h.\xc3\xa4", "h.?"));
  EXPECT_TRUE(MatchesGlob("x.\xc3\xa4y", "*?y"));
  EXPECT_FALSE(MatchesGlob("\xc3\xa4", "*??"));
}

TEST(MatchesGlob, ManyStarsInALongName_EndsSoon) {
  std::string pattern;
  for (int i = 0; i < 500; ++i) pattern += "a*";
  EXPECT_FALSE(MatchesGlob(std::string(10000, 'a') + "b", pattern + "c"));
}

TEST(CheckGlob, LongPattern_IsRefusedByName) {
  EXPECT_TRUE(CheckGlob("name", std::string(kMostGlobBytes, '*')).ok());
  const absl::Status refused = CheckGlob("name", std::string(kMostGlobBytes + 1, '*'));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "name has 1025 bytes, expected at most 1024");
}

}  // namespace
}  // namespace optshard

#include "common/name_list.h"

#include <string>

#include "gtest/gtest.h"

namespace optshard {
namespace {

NameList Of(const std::string& letters) {
  NameList list;
  for (const char letter : letters) list.Add(std::string(1, letter));
  return list;
}

TEST(NameListTest, OfFew_NamesThemAll) {
  EXPECT_EQ(Of("").Text(), "");
  EXPECT_EQ(Of("a").Text(), "\"a\"");
  EXPECT_EQ(Of("abcd").Text(), "\"a\", \"b\", \"c\", \"d\"");
}

TEST(NameListTest, OfMany_NamesTheFirst_AndCountsTheRest) {
  EXPECT_EQ(Of("abcdefg").Text(), "\"a\", \"b\", \"c\", \"d\" and 3 more");
  EXPECT_EQ(Of("abcdefg").count(), 7u);
}

}  // namespace
}  // namespace optshard

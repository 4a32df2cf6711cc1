#include "tools/launcher/prefixed_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace optshard {
namespace {

using ::testing::ElementsAre;

TEST(PrefixedLinesTest, Take_OnlyWholeLines_HowEverTheyArrive) {
  PrefixedLines lines("[rank 0] ");
  EXPECT_EQ(lines.Take("step 1"), "");
  EXPECT_EQ(lines.Take(" loss 2\nst"), "[rank 0] step 1 loss 2\n");
  EXPECT_EQ(lines.Take(""), "");
  EXPECT_EQ(lines.Take("ep 2\n\nstep 3\n"), "[rank 0] step 2\n[rank 0] \n[rank 0] step 3\n");
  EXPECT_EQ(lines.Finish(), "");
}

TEST(PrefixedLinesTest, Finish_UnfinishedLine_IsOne) {
  PrefixedLines lines("> ");
  lines.Take("a\nlast words");
  EXPECT_EQ(lines.Finish(), "> last words\n");
  EXPECT_EQ(lines.Finish(), "");
}

TEST(PrefixedLinesTest, Take_ByteByByte_GivesTheSame) {
  PrefixedLines lines("> ");
  std::string all;
  for (const char byte : std::string("one\r\ntwo\n")) all += lines.Take(std::string(1, byte));
  EXPECT_EQ(all, "> one\n> two\n");
}

TEST(PrefixedLinesTest, Take_LongLine_IsCutAndNothingIsLost) {
  PrefixedLines lines("");
  const std::string part(1000, 'x');
  std::string text;
  std::string all;
  while (text.size() < PrefixedLines::kLongestLine * 2) {
    text += part;
    all += lines.Take(part);
  }
  EXPECT_EQ(all.find('\n'), PrefixedLines::kLongestLine);
  EXPECT_EQ(all.size(), 2 * (PrefixedLines::kLongestLine + 1)) << "it waits for no newline";
  all += lines.Finish();
  std::string joined;
  for (const char byte : all) {
    if (byte != '\n') joined += byte;
  }
  EXPECT_EQ(joined, text);
}

TEST(PrefixedLinesTest, Last_AreTheLastLines_WithoutPrefix) {
  PrefixedLines lines("[rank 1] ", 2);
  lines.Take("a\nb\nc\nd");
  EXPECT_THAT(lines.last(), ElementsAre("b", "c"));
  lines.Finish();
  EXPECT_THAT(lines.last(), ElementsAre("c", "d"));
}

TEST(LinePrefixTest, Role_IsNamed_ColouredOnlyIfAskedFor) {
  EXPECT_EQ(LinePrefix(Role::Trainer(3), false), "[rank 3] ");
  EXPECT_EQ(LinePrefix(Role::Server(), false), "[server] ");
  EXPECT_EQ(LinePrefix(Role::Coordinator(), false), "[coordinator] ");
  EXPECT_EQ(LinePrefix(Role::Trainer(0), true), "\x1b[36m[rank 0]\x1b[0m ");
  EXPECT_NE(LinePrefix(Role::Trainer(0), true).substr(0, 5),
            LinePrefix(Role::Trainer(1), true).substr(0, 5));
}

}  // namespace
}  // namespace optshard

#include "common/log.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

constexpr char kTime[] = "[0-9]+-[0-9]+-[0-9]+T[0-9]+:[0-9]+:[0-9]+[.][0-9]+Z ";

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override { EXPECT_TRUE(SetLogLevel("warning").ok()); }

  template <typename Function>
  static std::string Stderr(Function&& function) {
    ::testing::internal::CaptureStderr();
    function();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(LogTest, Line_AllFieldsSet_HasThemInOrder) {
  const std::string text = Stderr([] {
    Log(LogLevel::kWarning, {"owner", "digits", 2, 5, 17}, "lost %s after %d ms", "rank 1", 30);
  });
  EXPECT_THAT(text, MatchesRegex(std::string(kTime) +
                                 "warning owner job=digits rank=2 generation=5 step=17 lost rank 1 "
                                 "after 30 ms\n"));
}

TEST_F(LogTest, Line_NothingSet_HasOnlyTimeLevelAndMessage) {
  EXPECT_THAT(Stderr([] { Log(LogLevel::kError, {}, "message"); }),
              MatchesRegex(std::string(kTime) + "error message\n"));
}

TEST_F(LogTest, Line_RankZero_IsPrinted) {
  LogContext context;
  context.rank = 0;
  EXPECT_THAT(Stderr([&] { Log(LogLevel::kError, context, "m"); }), HasSubstr(" rank=0 m\n"));
}

TEST_F(LogTest, Line_WithLineBreaks_StaysOneLine) {
  EXPECT_THAT(Stderr([] {
                Log(LogLevel::kError, {"owner", "a\nb"}, "one\r\ntwo");
              }),
              HasSubstr("owner job=a\\nb one\\r\\ntwo\n"));
}

TEST_F(LogTest, Message_WithBraces_IsNotAFormat) {
  EXPECT_THAT(Stderr([] { Log(LogLevel::kError, {}, "%s", "{} {0} %d"); }),
              HasSubstr("error {} {0} %d\n"));
}

TEST_F(LogTest, Default_BelowWarning_SaysNothing) {
  EXPECT_THAT(Stderr([] {
                Log(LogLevel::kDebug, {}, "d");
                Log(LogLevel::kInfo, {}, "i");
                LogLine(LogLevel::kInfo, {}, "i");
              }),
              IsEmpty());
}

TEST_F(LogTest, Level_Each_ShowsItselfAndWorse) {
  const std::vector<std::string> names = {"debug", "info", "warning", "error", "off"};
  for (size_t level = 0; level < names.size(); ++level) {
    ASSERT_TRUE(SetLogLevel(names[level]).ok());
    for (size_t line = 0; line < names.size(); ++line) {
      const bool shown = line >= level && names[line] != "off";
      EXPECT_EQ(LogEnabled(static_cast<LogLevel>(line)), shown)
          << names[line] << " at level " << names[level];
    }
  }
  EXPECT_THAT(Stderr([] { LogLine(LogLevel::kError, {}, "e"); }), IsEmpty());
}

TEST_F(LogTest, SetLogLevel_Unknown_ListsTheKnownAndChangesNothing) {
  const absl::Status status = SetLogLevel("loud");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"loud\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("debug, info, warning, error, off"));
  EXPECT_TRUE(LogEnabled(LogLevel::kWarning));
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
}

TEST_F(LogTest, Lines_FromManyThreads_StayWhole) {
  const std::string text = Stderr([] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([i] {
        for (int k = 0; k < 50; ++k) {
          Log(LogLevel::kWarning, {"owner", "job", i}, "%s", std::string(200, 'x'));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  EXPECT_THAT(lines, SizeIs(200));
  EXPECT_THAT(lines,
              Each(MatchesRegex(std::string(kTime) + "warning owner job=job rank=[0-3] x+")));
  EXPECT_EQ(text.size(), 200 * (lines[0].size() + 1));
}

}  // namespace
}  // namespace optshard

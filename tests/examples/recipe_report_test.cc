#include "examples/recipe_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RecipeReport Report(const std::string& mode, int rank) {
  RecipeReport report;
  report.mode = mode;
  report.rank = rank;
  report.model_built_bytes = 1000000;
  report.before_step_bytes = 2000000;
  report.after_step_bytes = 3000000;
  report.peak_bytes = 4000000;
  report.state_bytes = 5000000;
  report.parameter_sum = 0.1;
  report.parameter_checksum = 0xfedcba9876543210;
  return report;
}

TEST(RecipeReportTest, Json_ThereAndBack_IsTheSame) {
  const auto back = RecipeReportFromJson(ToJson(Report("sharded", 1)));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToJson(*back), ToJson(Report("sharded", 1)));
  EXPECT_EQ(back->parameter_checksum, 0xfedcba9876543210);
}

TEST(RecipeReportTest, FromJson_Garbage_IsAnError) {
  EXPECT_EQ(RecipeReportFromJson("").status().code(), absl::StatusCode::kDataLoss);
}

TEST(RecipeReportTest, SumsEqual_AnyDifference_IsFound) {
  RecipeReport other = Report("unsharded", 0);
  EXPECT_TRUE(SumsEqual({Report("sharded", 0), other}));
  other.parameter_sum += 1e-12;
  EXPECT_FALSE(SumsEqual({Report("sharded", 0), other}));
  other = Report("unsharded", 0);
  other.parameter_checksum += 1;
  EXPECT_FALSE(SumsEqual({Report("sharded", 0), other}));
}

TEST(RecipeReportTest, Table_Reports_HasALineEach) {
  EXPECT_THAT(RecipeTable({Report("sharded", 0), Report("unsharded", 1)}),
              AllOf(HasSubstr("unsharded     1"), HasSubstr("4.0 MB"), HasSubstr("5.0 MB"),
                    HasSubstr("0.1000")));
}

TEST(RecipeReportTest, Summary_Reports_HasWhatScriptsRead) {
  const auto summary = nlohmann::json::parse(RecipeSummaryJson({Report("sharded", 0)}));
  EXPECT_EQ(summary.at("sums_equal"), true);
  EXPECT_EQ(summary.at("runs").at(0).at("state_bytes"), 5000000);
}

}  // namespace
}  // namespace optshard

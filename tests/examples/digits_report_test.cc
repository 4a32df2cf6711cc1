#include "examples/digits_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

DigitsReport Report(int rank) {
  DigitsReport report;
  report.rank = rank;
  report.sharded = {0.975, 0xfedcba9876543210, {100, 60}};
  report.unsharded = {0.975, 0xfedcba9876543210, {160, 160}};
  report.torch = {0.97, 0x1234, {160}};
  report.owner_addresses = {"a:1", "b:2"};
  return report;
}

TEST(DigitsReportTest, Json_ThereAndBack_IsTheSame) {
  const auto back = DigitsReportFromJson(ToJson(Report(1)));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToJson(*back), ToJson(Report(1)));
  EXPECT_EQ(back->sharded.checksum, 0xfedcba9876543210);
}

TEST(DigitsReportTest, FromJson_Garbage_IsAnError) {
  EXPECT_EQ(DigitsReportFromJson("{").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(DigitsReportFromJson("{}").status().code(), absl::StatusCode::kDataLoss);
}

TEST(DigitsReportTest, ParametersEqual_AnyDifference_IsFound) {
  EXPECT_TRUE(ParametersEqual({Report(0), Report(1)}));
  DigitsReport other = Report(1);
  other.sharded.checksum = 1;
  EXPECT_FALSE(ParametersEqual({Report(0), other}));
  other = Report(1);
  other.unsharded.checksum = 1;
  EXPECT_FALSE(ParametersEqual({Report(0), other}));
  EXPECT_FALSE(ParametersEqual({other}));
}

TEST(DigitsReportTest, CheckResumed_RanksThatDifferOrAWorseModel_AreErrorsWithTheFigures) {
  DigitsReport resumed = Report(0);
  resumed.sharded = {0.95, 0x55, {}};
  DigitsReport other = resumed;
  other.rank = 2;
  EXPECT_EQ(CheckResumed({Report(0)}, {resumed, other}), absl::OkStatus());
  other.sharded.checksum = 0x66;
  const absl::Status differ = CheckResumed({Report(0)}, {resumed, other});
  EXPECT_EQ(differ.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(
      std::string(differ.message()),
      AllOf(HasSubstr("rank 2"), HasSubstr("0000000000000066"), HasSubstr("0000000000000055")));
  resumed.sharded.accuracy = 0.94;
  const absl::Status worse = CheckResumed({Report(0)}, {resumed});
  EXPECT_EQ(worse.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(worse.message()), AllOf(HasSubstr("94.00 %"), HasSubstr("97.50 %")));
}

TEST(DigitsReportTest, Table_Reports_ShowsEachRun) {
  EXPECT_THAT(DigitsTable({Report(0), Report(1)}),
              AllOf(HasSubstr("97.50 %"), HasSubstr("100 60"), HasSubstr("160 160"),
                    HasSubstr("fedcba9876543210"), HasSubstr("torch::optim::Adam"),
                    HasSubstr("are the same")));
  DigitsReport other = Report(1);
  other.sharded.checksum = 1;
  EXPECT_THAT(DigitsTable({Report(0), other}), HasSubstr("DIFFER"));
}

TEST(DigitsReportTest, Summary_Reports_HasWhatScriptsRead) {
  const auto summary = nlohmann::json::parse(DigitsSummaryJson({Report(0), Report(1)}));
  EXPECT_EQ(summary.at("accuracy_sharded"), 0.975);
  EXPECT_EQ(summary.at("accuracy_unsharded"), 0.975);
  EXPECT_EQ(summary.at("params_equal"), true);
  EXPECT_EQ(summary.at("state_bytes_unsharded"), 160);
  EXPECT_EQ(summary.at("state_bytes_per_rank"), (std::vector<int64_t>{100, 60}));
}

}  // namespace
}  // namespace optshard

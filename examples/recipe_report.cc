#include "examples/recipe_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace optshard {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RecipeReport, mode, rank, model_built_bytes, before_step_bytes,
                                   after_step_bytes, peak_bytes, state_bytes, parameter_sum,
                                   parameter_checksum, step_ms)

namespace {

double Megabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

}  // namespace

std::string ToJson(const RecipeReport& report) { return nlohmann::json(report).dump(); }

absl::StatusOr<RecipeReport> RecipeReportFromJson(const std::string& json) {
  try {
    return nlohmann::json::parse(json).get<RecipeReport>();
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(absl::StrCat("a rank's report cannot be read: ", error.what()));
  }
}

bool SumsEqual(const std::vector<RecipeReport>& reports) {
  return std::all_of(reports.begin(), reports.end(), [&](const RecipeReport& report) {
    return report.parameter_sum == reports[0].parameter_sum &&
           report.parameter_checksum == reports[0].parameter_checksum;
  });
}

std::string RecipeTable(const std::vector<RecipeReport>& reports) {
  std::string table =
      absl::StrFormat("%-10s %4s %12s %12s %12s %12s %12s   %s\n", "", "rank", "model built",
                      "before step", "after step", "peak", "Adam state", "sum of the parameters");
  for (const RecipeReport& report : reports) {
    absl::StrAppendFormat(
        &table, "%-10s %4d %9.1f MB %9.1f MB %9.1f MB %9.1f MB %9.1f MB   %.12f\n", report.mode,
        report.rank, Megabytes(report.model_built_bytes), Megabytes(report.before_step_bytes),
        Megabytes(report.after_step_bytes), Megabytes(report.peak_bytes),
        Megabytes(report.state_bytes), report.parameter_sum);
  }
  return table;
}

std::string RecipeSummaryJson(const std::vector<RecipeReport>& reports) {
  nlohmann::json summary;
  summary["sums_equal"] = SumsEqual(reports);
  summary["runs"] = reports;
  return summary.dump(2) + "\n";
}

}  // namespace optshard

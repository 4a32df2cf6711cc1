// What a rank of the recipe measured, and the table of all of them.
#ifndef OPTSHARD_EXAMPLES_RECIPE_REPORT_H_
#define OPTSHARD_EXAMPLES_RECIPE_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace optshard {

struct RecipeReport {
  std::string mode;  // "sharded", "unsharded"
  int rank = 0;
  // Resident memory.
  int64_t model_built_bytes = 0;
  int64_t before_step_bytes = 0;
  int64_t after_step_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t state_bytes = 0;  // of the live slots
  double parameter_sum = 0;
  uint64_t parameter_checksum = 0;
  double step_ms = 0;  // of the last step
};

std::string ToJson(const RecipeReport& report);
absl::StatusOr<RecipeReport> RecipeReportFromJson(const std::string& json);

// Whether all ranks of all runs have the same parameters: sums and bytes.
bool SumsEqual(const std::vector<RecipeReport>& reports);

// For people, one line a report.
std::string RecipeTable(const std::vector<RecipeReport>& reports);

// For scripts: sums_equal, and the reports as `runs`.
std::string RecipeSummaryJson(const std::vector<RecipeReport>& reports);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_RECIPE_REPORT_H_

// The measurements of one rank of the recipe, and the summary over all ranks. The functions are
// thread-safe.
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
  // Resident memory: once the model is built, around the last step, and the maximum.
  int64_t model_built_bytes = 0;
  int64_t before_step_bytes = 0;
  int64_t after_step_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t state_bytes = 0;  // optimizer state that this rank's shard owner keeps
  double parameter_sum = 0;
  uint64_t parameter_checksum = 0;
  double step_ms = 0;  // duration of the last step, in milliseconds
};

std::string ToJson(const RecipeReport& report);
// DATA_LOSS where the text is not a report.
absl::StatusOr<RecipeReport> RecipeReportFromJson(const std::string& json);

// Whether the parameters have the same sum and the same checksum on all ranks of all runs.
bool SumsEqual(const std::vector<RecipeReport>& reports);

// A table for people, with one line for each report.
std::string RecipeTable(const std::vector<RecipeReport>& reports);

// JSON for scripts: sums_equal, and all reports under `runs`.
std::string RecipeSummaryJson(const std::vector<RecipeReport>& reports);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_RECIPE_REPORT_H_

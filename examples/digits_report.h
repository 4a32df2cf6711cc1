// What a rank of the digits example found, and what all of them show together.
#ifndef OPTSHARD_EXAMPLES_DIGITS_REPORT_H_
#define OPTSHARD_EXAMPLES_DIGITS_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace optshard {

struct DigitsRun {
  double accuracy = 0;               // on the held-out digits
  uint64_t checksum = 0;             // over all bytes of the parameters
  std::vector<int64_t> state_bytes;  // by rank; what this rank knows
};

struct DigitsReport {
  int rank = 0;
  DigitsRun sharded;
  DigitsRun unsharded;
  // torch::optim::Adam in one process on the whole batches; on rank 0 only.
  DigitsRun torch;
  std::vector<std::string> owner_addresses;  // of the sharded run's owners, by rank
};

std::string ToJson(const DigitsReport& report);
absl::StatusOr<DigitsReport> DigitsReportFromJson(const std::string& json);

// Whether all bytes of the parameters are the same, sharded and unsharded, on all ranks.
bool ParametersEqual(const std::vector<DigitsReport>& reports);

// For people. `reports` has rank 0's first.
std::string DigitsTable(const std::vector<DigitsReport>& reports);

// For scripts: accuracy_sharded, accuracy_unsharded, params_equal, state_bytes_unsharded,
// state_bytes_per_rank.
std::string DigitsSummaryJson(const std::vector<DigitsReport>& reports);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_DIGITS_REPORT_H_

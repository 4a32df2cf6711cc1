// The results of one rank of the digits example, and the summary over all ranks. The functions are
// thread-safe.
#ifndef OPTSHARD_EXAMPLES_DIGITS_REPORT_H_
#define OPTSHARD_EXAMPLES_DIGITS_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace optshard {

struct DigitsRun {
  double accuracy = 0;               // on the held-out digits, from 0 to 1
  uint64_t checksum = 0;             // over all bytes of the parameters
  std::vector<int64_t> state_bytes;  // by rank; empty where this rank did not ask for them
};

struct DigitsReport {
  int rank = 0;
  DigitsRun sharded;
  DigitsRun unsharded;
  // torch::optim::Adam in one process, on the whole batches. Only rank 0 has this run.
  DigitsRun torch;
  std::vector<std::string> owner_addresses;  // of the sharded run's owners, by rank
};

std::string ToJson(const DigitsReport& report);
// DATA_LOSS where the text is not a report.
absl::StatusOr<DigitsReport> DigitsReportFromJson(const std::string& json);

// Whether the parameters are the same to the byte on all ranks, sharded and unsharded.
bool ParametersEqual(const std::vector<DigitsReport>& reports);

// That ranks that went on from a checkpoint ended as the first run did: with the same parameters on
// all of them, and an accuracy that is at most 3 points lower (their batches are others). DATA_LOSS
// naming the rank or the two accuracies. Neither list is empty.
absl::Status CheckResumed(const std::vector<DigitsReport>& reports,
                          const std::vector<DigitsReport>& resumed);

// A table for people. The first report is rank 0's.
std::string DigitsTable(const std::vector<DigitsReport>& reports);

// JSON for scripts: accuracy_sharded, accuracy_unsharded, accuracy_torch, params_equal,
// state_bytes_unsharded and state_bytes_per_rank; accuracy_resumed where it went on from a
// checkpoint. The first report is rank 0's.
std::string DigitsSummaryJson(const std::vector<DigitsReport>& reports,
                              const absl::optional<DigitsRun>& resumed = absl::nullopt);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_DIGITS_REPORT_H_

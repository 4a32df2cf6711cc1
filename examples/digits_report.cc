#include "examples/digits_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace optshard {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DigitsRun, accuracy, checksum, state_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DigitsReport, rank, sharded, unsharded, torch, owner_addresses)

namespace {

constexpr double kLowerAccuracy = 0.03;

std::string Row(const std::string& name, const DigitsRun& run) {
  return absl::StrFormat("%-38s %8.2f %%   %016x   %s\n", name, 100 * run.accuracy, run.checksum,
                         absl::StrJoin(run.state_bytes, " "));
}

}  // namespace

std::string ToJson(const DigitsReport& report) { return nlohmann::json(report).dump(); }

absl::StatusOr<DigitsReport> DigitsReportFromJson(const std::string& json) {
  try {
    return nlohmann::json::parse(json).get<DigitsReport>();
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(absl::StrCat("a rank's report cannot be read: ", error.what()));
  }
}

bool ParametersEqual(const std::vector<DigitsReport>& reports) {
  return std::all_of(reports.begin(), reports.end(), [&](const DigitsReport& report) {
    return report.sharded.checksum == reports[0].sharded.checksum &&
           report.unsharded.checksum == reports[0].sharded.checksum;
  });
}

absl::Status CheckResumed(const std::vector<DigitsReport>& reports,
                          const std::vector<DigitsReport>& resumed) {
  for (const DigitsReport& report : resumed) {
    if (report.sharded.checksum == resumed[0].sharded.checksum) continue;
    return absl::DataLossError(absl::StrFormat(
        "of the ranks that went on from the checkpoint, rank %d ended with parameters of checksum "
        "%016x, and rank %d with %016x",
        report.rank, report.sharded.checksum, resumed[0].rank, resumed[0].sharded.checksum));
  }
  const double expected = reports[0].sharded.accuracy;
  const double accuracy = resumed[0].sharded.accuracy;
  if (accuracy >= expected - kLowerAccuracy) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "the run from the checkpoint ended with an accuracy of %.2f %%, the first run with %.2f %%; "
      "at most %.0f points less were expected",
      100 * accuracy, 100 * expected, 100 * kLowerAccuracy));
}

std::string DigitsTable(const std::vector<DigitsReport>& reports) {
  const DigitsReport& first = reports[0];
  const size_t ranks = first.owner_addresses.size();
  std::string table = absl::StrFormat("%-38s %10s   %-16s   %s\n", "", "accuracy", "checksum",
                                      "optimizer state of each rank, bytes");
  absl::StrAppend(&table, Row(absl::StrCat("sharded over ", ranks, " ranks"), first.sharded),
                  Row(absl::StrCat("unsharded on ", ranks, " ranks"), first.unsharded),
                  Row("torch::optim::Adam in one process", first.torch),
                  ParametersEqual(reports)
                      ? "All bytes of the parameters are the same, sharded and unsharded"
                      : "THE PARAMETERS DIFFER between sharded and unsharded, or between ranks",
                  reports.size() > 1 ? absl::StrCat(", on ", reports.size(), " ranks.\n") : ".\n");
  return table;
}

std::string DigitsSummaryJson(const std::vector<DigitsReport>& reports,
                              const absl::optional<DigitsRun>& resumed) {
  const DigitsReport& first = reports[0];
  nlohmann::ordered_json summary = {
      {"accuracy_sharded", first.sharded.accuracy},
      {"accuracy_unsharded", first.unsharded.accuracy},
      {"accuracy_torch", first.torch.accuracy},
      {"params_equal", ParametersEqual(reports)},
      {"state_bytes_unsharded", first.unsharded.state_bytes.at(0)},
      {"state_bytes_per_rank", first.sharded.state_bytes},
  };
  if (resumed.has_value()) summary["accuracy_resumed"] = resumed->accuracy;
  return summary.dump(2) + "\n";
}

}  // namespace optshard

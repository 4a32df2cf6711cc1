// Starts a job on this machine: its services and the ranks, as processes that end with this one.
#ifndef OPTSHARD_EXAMPLES_RANK_LAUNCHER_H_
#define OPTSHARD_EXAMPLES_RANK_LAUNCHER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "examples/job_services.h"

namespace optshard {

// A rank is this binary again, with --coordinator, --attach, --rank, --world-size and --launched.
// One that ends with RankLink::kReplaceMe is started once more, with --successor. SIGINT and
// SIGTERM are taken by this process, which then ends the children. Bound to the thread that starts
// it.
class RankLauncher {
 public:
  struct Options {
    JobServices::Options services;
    std::vector<std::string> arguments;  // of every rank, beside those above
  };

  // Errors as JobServices::Start; CANCELLED: a signal came.
  static absl::StatusOr<std::unique_ptr<RankLauncher>> Start(const Options& options);

  // Kills what still runs.
  ~RankLauncher();

  // Waits for one report of each rank (RankLink::Report), by rank. UNAVAILABLE naming the rank that
  // ended before, and how; then the others are given a moment to say what they saw. CANCELLED: a
  // signal came. DEADLINE_EXCEEDED naming the ranks that are late.
  absl::StatusOr<std::vector<std::string>> WaitForReports(absl::Time deadline);

  // Lets the ranks go on from RankLink::WaitForRelease and waits until all have ended. Errors as
  // above; UNAVAILABLE where an exit code is not 0.
  absl::Status Finish(absl::Time deadline);

 private:
  class Impl;
  explicit RankLauncher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_RANK_LAUNCHER_H_

// Starts a job on this machine: its services and its ranks, in processes that end with this one.
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

// Each rank runs this same binary with --coordinator, --attach, --rank, --world-size and
// --launched. A rank that ends with RankLink::kReplaceMe is replaced once, by a process that also
// gets --successor. This process handles SIGINT and SIGTERM by ending the children. Bound to the
// thread that calls Start. All deadlines are in the time of absl::Now().
class RankLauncher {
 public:
  struct Options {
    JobServices::Options services;
    std::vector<std::string> arguments;  // for every rank, in addition to those above
  };

  // Errors as JobServices::Start, and CANCELLED where a signal came.
  static absl::StatusOr<std::unique_ptr<RankLauncher>> Start(const Options& options);

  // Kills the processes that still run.
  ~RankLauncher();

  // Waits for one report from each rank (RankLink::Report) and returns them by rank.
  //   UNAVAILABLE        a rank ended before its report; names it and its exit code. The other
  //                      ranks have had a moment to print their own errors
  //   CANCELLED          a signal came
  //   DEADLINE_EXCEEDED  names the ranks that have not reported
  absl::StatusOr<std::vector<std::string>> WaitForReports(absl::Time deadline);

  // Lets RankLink::WaitForRelease return on all ranks, and waits until all have ended. Errors as
  // above; also UNAVAILABLE where an exit code is not 0.
  absl::Status Finish(absl::Time deadline);

 private:
  class Impl;
  explicit RankLauncher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_RANK_LAUNCHER_H_

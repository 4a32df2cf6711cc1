// What a job's ranks need on this machine: a coordinator and, where wanted, a shard server, as
// processes that end with this one.
#ifndef OPTSHARD_EXAMPLES_JOB_SERVICES_H_
#define OPTSHARD_EXAMPLES_JOB_SERVICES_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "examples/child_process.h"
#include "examples/scratch_directory.h"

namespace optshard {

// Bound to the thread that starts it.
class JobServices {
 public:
  struct Options {
    std::string job;
    int world_size = 2;
    bool shard_server = false;       // hosts all ranks
    std::string coordinator_binary;  // empty: where the build puts it beside this binary
    std::string server_binary;
    std::string log_level = "warning";
  };

  // `interrupted` is asked while it waits. NOT_FOUND (no such binary), UNAVAILABLE (a process ended
  // at once), DEADLINE_EXCEEDED (the coordinator does not say its port, the server does not
  // listen).
  static absl::StatusOr<std::unique_ptr<JobServices>> Start(
      const Options& options, const std::function<absl::Status()>& interrupted);

  // Ends the server, which leaves the job in good order, then the coordinator.
  ~JobServices();

  const std::string& coordinator() const { return coordinator_address_; }  // HOST:PORT
  // As the trainers' option attach.
  const std::string& attach() const { return attach_; }

 private:
  JobServices() = default;
  absl::Status StartCoordinator(const Options& options,
                                const std::function<absl::Status()>& interrupted);
  absl::Status StartServer(const Options& options,
                           const std::function<absl::Status()>& interrupted);

  ScratchDirectory scratch_;  // the port's file, the server's socket
  std::string coordinator_address_;
  std::string attach_ = "embedded";
  std::unique_ptr<ChildProcess> coordinator_;
  std::unique_ptr<ChildProcess> server_;
};

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_JOB_SERVICES_H_

// The services that the ranks of a job need on this machine: a coordinator and, if wanted, a shard
// server. They are processes that end with this one.
#ifndef OPTSHARD_EXAMPLES_JOB_SERVICES_H_
#define OPTSHARD_EXAMPLES_JOB_SERVICES_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/process/child_process.h"
#include "common/process/scratch_directory.h"

namespace optshard {

// Bound to the thread that calls Start.
class JobServices {
 public:
  struct Options {
    std::string job;
    int world_size = 2;
    bool shard_server = false;  // hosts all ranks
    // Paths. Empty: beside this binary, or where the build puts it.
    std::string coordinator_binary;
    std::string server_binary;
    std::string log_level = "warning";
  };

  // Returns when the services listen. While it waits it calls `interrupted`, and returns its error
  // if it has one.
  //   NOT_FOUND          a binary does not exist or cannot be executed
  //   UNAVAILABLE        a process ended at once
  //   DEADLINE_EXCEEDED  the coordinator did not report its port, or the server does not listen
  static absl::StatusOr<std::unique_ptr<JobServices>> Start(
      const Options& options, const std::function<absl::Status()>& interrupted);

  // Ends the server, which first leaves the job cleanly, and then the coordinator.
  ~JobServices();

  const std::string& coordinator() const { return coordinator_address_; }  // HOST:PORT
  // The value of the trainers' option `attach`: "embedded", or the server's "unix:PATH".
  const std::string& attach() const { return attach_; }

 private:
  JobServices() = default;
  absl::Status StartCoordinator(const Options& options,
                                const std::function<absl::Status()>& interrupted);
  absl::Status StartServer(const Options& options,
                           const std::function<absl::Status()>& interrupted);

  ScratchDirectory scratch_;  // for the coordinator's port file and the server's socket
  std::string coordinator_address_;
  std::string attach_ = "embedded";
  std::unique_ptr<ChildProcess> coordinator_;
  std::unique_ptr<ChildProcess> server_;
};

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_JOB_SERVICES_H_

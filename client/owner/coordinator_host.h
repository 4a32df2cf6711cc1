// The coordinator in rank 0's process, for a job that was not given another one.
#ifndef OPTSHARD_CLIENT_OWNER_COORDINATOR_HOST_H_
#define OPTSHARD_CLIENT_OWNER_COORDINATOR_HOST_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace optshard {

// The optimizers of a process that name the same address share one. Thread-safe.
class CoordinatorHost {
 public:
  struct Options {
    std::string listen;  // HOST:PORT; port 0, any free one, is never shared
    std::string job;
    int world_size = 1;
    absl::Duration join_timeout;
  };

  // UNAVAILABLE naming the address where it cannot be listened on.
  static absl::StatusOr<std::shared_ptr<CoordinatorHost>> Get(const Options& options);

  // The coordinator ends with the last reference.
  ~CoordinatorHost();

  std::string address() const;

  // Waits until all members of all optimizers have left; false where `timeout` came first.
  bool WaitUntilDone(absl::Duration timeout);

 private:
  class Impl;
  explicit CoordinatorHost(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_COORDINATOR_HOST_H_

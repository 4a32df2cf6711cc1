// A coordinator that listens: the domain class, its gRPC service and the thread that lets time
// pass. Also for embedding: rank 0's trainer hosts one where none is given.
#ifndef OPTSHARD_SERVER_COORDINATOR_COORDINATOR_SERVER_H_
#define OPTSHARD_SERVER_COORDINATOR_COORDINATOR_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/coordinator/coordinator.h"

namespace optshard {

// Thread-safe.
class CoordinatorServer {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";  // HOST:PORT, port 0 for any free one
    Coordinator::Options coordinator;
    absl::Duration tick = absl::Milliseconds(20);  // how often leases and timeouts are looked at
  };

  // Listens when it returns. INVALID_ARGUMENT as Coordinator::Create; UNAVAILABLE naming the
  // address where it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(Options options);

  // Stops, with a grace of a second.
  ~CoordinatorServer();

  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  int port() const;
  std::string address() const;  // HOST:PORT as in Options, with the true port

  Coordinator& coordinator();

  // Waits until there was a group, all are finished or failed, everyone has left and nobody is to
  // come back (GroupOptions::resume_grace). Whether that is so within `timeout`: a host should give
  // the others that long before it stops.
  bool WaitUntilDone(absl::Duration timeout);

  // Ends all calls, those that wait included, within `grace`, and the listening. Members notice
  // that the coordinator is gone; their steps go on. Idempotent.
  void Stop(absl::Duration grace);

 private:
  class Impl;
  explicit CoordinatorServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_COORDINATOR_SERVER_H_

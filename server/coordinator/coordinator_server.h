// A coordinator that listens: the domain class, its gRPC service and the thread that calls Tick.
// Rank 0's trainer embeds one where no address of a coordinator is given.
#ifndef OPTSHARD_SERVER_COORDINATOR_COORDINATOR_SERVER_H_
#define OPTSHARD_SERVER_COORDINATOR_COORDINATOR_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/saving/checkpoint_options.h"

namespace optshard {

// Thread-safe.
class CoordinatorServer {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";  // HOST:PORT, port 0 for any free one
    Coordinator::Options coordinator;
    CheckpointOptions checkpoints;
    absl::Duration tick = absl::Milliseconds(20);  // how often leases and timeouts are checked
    std::function<void()> on_tick;                 // after each check, in its thread; may be null
  };

  // The server listens when this returns. INVALID_ARGUMENT as Coordinator::Create, or for
  // checkpoint options that do not go together; UNAVAILABLE naming the address where it cannot
  // listen there.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(Options options);

  // Stops, with a grace of a second.
  ~CoordinatorServer();

  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  int port() const;
  std::string address() const;  // HOST:PORT as in Options, with the true port

  Coordinator& coordinator();

  // Waits until Coordinator::Done or Stop. Returns whether the coordinator was done within
  // `timeout`. A process that embeds the server should wait here before it stops, so that the other
  // ranks can leave.
  bool WaitUntilDone(absl::Duration timeout);

  // Stops listening and ends all calls within `grace`, also those that wait. Members notice that
  // the coordinator is gone; their steps go on. Idempotent.
  void Stop(absl::Duration grace);

 private:
  class Impl;
  explicit CoordinatorServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_COORDINATOR_SERVER_H_

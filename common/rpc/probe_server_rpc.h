// What a supervisor such as Kubernetes asks whether a program is well: grpc.health.v1.Health at a
// port of its own. That port serves nothing else of the program, so it may stay open to the network
// where the others are not.
#ifndef OPTSHARD_COMMON_RPC_PROBE_SERVER_RPC_H_
#define OPTSHARD_COMMON_RPC_PROBE_SERVER_RPC_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace optshard {

// The names of the two services that Health/Check is asked about.
//   liveness    SERVING while the program's main loop comes around; otherwise it hangs, and should
//               be started again
//   readiness   SERVING while the program takes those that it is there for
constexpr char kLivenessService[] = "liveness";
constexpr char kReadinessService[] = "readiness";

// Thread-safe.
class ProbeServer {
 public:
  struct Options {
    std::string listen;  // HOST:PORT, port 0 for any free one
    // A main loop that has not come around for longer than this hangs.
    absl::Duration longest_silence = absl::Seconds(30);
    absl::Duration look = absl::Seconds(1);  // how often that is checked
    const Clock* clock = &Clock::Monotonic();
  };

  // The program is alive and not ready when this returns. UNAVAILABLE naming the address where it
  // cannot be listened on.
  static absl::StatusOr<std::unique_ptr<ProbeServer>> Start(Options options);

  // Stops.
  ~ProbeServer();

  ProbeServer(const ProbeServer&) = delete;
  ProbeServer& operator=(const ProbeServer&) = delete;

  int port() const;

  // The main loop calls it each time that it comes around. Never blocks.
  void Beat();

  void SetReady(bool ready);

 private:
  class Impl;
  explicit ProbeServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_RPC_PROBE_SERVER_RPC_H_

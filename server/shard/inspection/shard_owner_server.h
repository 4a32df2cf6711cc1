// The gRPC server of a process that hosts shard owners: the services ShardOwner and ShardInspection
// (proto/optshard/v1/shard_owner.proto, inspection.proto), health and reflection at one port.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_OWNER_SERVER_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_OWNER_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "server/shard/inspection/state_stream_limits.h"

namespace optshard {

// One server is enough for all ranks and optimizers of a process. It listens from its start on,
// since owners tell the coordinator its address when they join. A view can be read from when it is
// registered until it is unregistered. Calls only read, and no step waits for one. Thread-safe.
class ShardOwnerServer {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";  // HOST:PORT, port 0 for any free one
    bool serving = true;                 // what the health service says at first
    StateStreamLimits streams = {};
  };

  // `views` outlives the server. UNAVAILABLE naming the address where it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<ShardOwnerServer>> Start(const Options& options,
                                                                 ShardViewRegistry* views);

  // Stops.
  ~ShardOwnerServer();

  ShardOwnerServer(const ShardOwnerServer&) = delete;
  ShardOwnerServer& operator=(const ShardOwnerServer&) = delete;

  int port() const;

  // What grpc.health.v1.Health says.
  void SetServing(bool serving);

  // Ends the calls under way within `grace`; idempotent.
  void Stop(absl::Duration grace);

 private:
  class Impl;
  explicit ShardOwnerServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_OWNER_SERVER_H_

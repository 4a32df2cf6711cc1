// The shard server's own gRPC service: health, with reflection. Its ranks are looked into at ports
// of their own (node_inspection_service.h).
#ifndef OPTSHARD_SERVER_NODE_NODE_HEALTH_SERVICE_H_
#define OPTSHARD_SERVER_NODE_NODE_HEALTH_SERVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace optshard {

// Thread-safe.
class NodeHealthServer {
 public:
  // Listens at HOST:PORT (port 0: any free one), not serving at first. UNAVAILABLE naming the
  // address where it cannot.
  static absl::StatusOr<std::unique_ptr<NodeHealthServer>> Start(const std::string& listen);
  ~NodeHealthServer();

  int port() const;
  // What grpc.health.v1.Health says.
  void SetServing(bool serving);

 private:
  class Impl;
  explicit NodeHealthServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_NODE_HEALTH_SERVICE_H_

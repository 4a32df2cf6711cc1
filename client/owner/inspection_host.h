// The one server of a trainer's process through which its embedded shard owners are read.
#ifndef OPTSHARD_CLIENT_OWNER_INSPECTION_HOST_H_
#define OPTSHARD_CLIENT_OWNER_INSPECTION_HOST_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/shard/inspection/shard_owner_server.h"
#include "server/shard/inspection/shard_view_registry.h"

namespace optshard {

// The optimizers of a process that name the same address share one, also where its port is 0.
// Thread-safe.
class InspectionHost {
 public:
  // Listens at HOST:PORT, port 0 for any free one. UNAVAILABLE naming the address where it cannot.
  static absl::StatusOr<std::shared_ptr<InspectionHost>> Get(const std::string& listen);

  int port() const { return server_->port(); }
  ShardViewRegistry& views() { return views_; }

 private:
  InspectionHost() = default;

  ShardViewRegistry views_;
  std::unique_ptr<ShardOwnerServer> server_;  // stops before the views go
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_INSPECTION_HOST_H_

// Serves the inspection of the ranks that a shard server hosts, over gRPC: each rank at a port of
// its own, as an embedded shard owner.
#ifndef OPTSHARD_SERVER_NODE_NODE_INSPECTION_SERVICE_H_
#define OPTSHARD_SERVER_NODE_NODE_INSPECTION_SERVICE_H_

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/node/inspection.h"
#include "server/shard/inspection/shard_owner_server.h"

namespace optshard {

// Thread-safe.
class NodeInspection : public Inspection {
 public:
  // Listens at `host` (an address, or one that stands for all of this host's), for each rank at a
  // port of its own; others reach it at `own_address` where `host` stands for all.
  NodeInspection(const std::string& host, std::string own_address);

  absl::StatusOr<Address> AddressOf(Rank rank, int former_port) override;
  void Show(absl::string_view optimizer, Rank rank, const ShardView* view) override;

 private:
  const std::string host_;
  const std::string own_address_;
  absl::Mutex mutex_;
  std::map<Rank, std::unique_ptr<ShardOwnerServer>> servers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_NODE_INSPECTION_SERVICE_H_

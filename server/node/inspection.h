// Where people may look into the ranks that a server hosts. node_inspection_service.h serves it
// over gRPC.
#ifndef OPTSHARD_SERVER_NODE_INSPECTION_H_
#define OPTSHARD_SERVER_NODE_INSPECTION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"
#include "server/shard/inspection/shard_view.h"

namespace optshard {

// Thread-safe.
class Inspection {
 public:
  virtual ~Inspection() = default;

  struct Address {
    std::string address;  // HOST:PORT
    int port = 0;
  };
  // Where the rank can be looked into: at `former_port`, if that is free and not 0, so that who
  // knows an earlier server's address finds this one. UNAVAILABLE where it cannot be listened on.
  virtual absl::StatusOr<Address> AddressOf(Rank rank, int former_port) = 0;

  // The view stays valid until it is replaced by nullptr: that returns when nobody reads it any
  // more.
  virtual void Show(absl::string_view optimizer, Rank rank, const ShardView* view) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_INSPECTION_H_

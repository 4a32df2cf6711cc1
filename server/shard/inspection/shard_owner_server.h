// Serves the inspection of this process's shard owners over gRPC (proto/optshard/v1/
// shard_owner.proto), with health and reflection. Reads only, and no step waits for a call.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_OWNER_SERVER_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_OWNER_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/shard/inspection/shard_view.h"

namespace optshard {

// One server serves the optimizers of one process. It listens from the start on, since owners tell
// the coordinator its address when they join; calls for an optimizer get UNAVAILABLE until its view
// is registered. Thread-safe.
class ShardOwnerServer {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";  // HOST:PORT, port 0 for any free one
  };

  // UNAVAILABLE naming the address where it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<ShardOwnerServer>> Start(const Options& options);

  // Stops.
  ~ShardOwnerServer();

  ShardOwnerServer(const ShardOwnerServer&) = delete;
  ShardOwnerServer& operator=(const ShardOwnerServer&) = delete;

  int port() const;

  // ALREADY_EXISTS where the optimizer has a view. The view stays valid until Unregister returned.
  absl::Status Register(absl::string_view optimizer, const ShardView* view);

  // Returns when no call reads the view any more (a call copies at most 64 Ki elements at a time,
  // so this is soon). Does nothing for an optimizer without a view.
  void Unregister(absl::string_view optimizer);

  // Ends the calls under way within `grace`; idempotent.
  void Stop(absl::Duration grace);

 private:
  class Impl;
  explicit ShardOwnerServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_OWNER_SERVER_H_

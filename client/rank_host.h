// What a rank runs in the trainer's process: its shard owner, the service that lets others look
// into it, and on rank 0 the job's coordinator where none is given.
#ifndef OPTSHARD_CLIENT_RANK_HOST_H_
#define OPTSHARD_CLIENT_RANK_HOST_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sharded_optimizer_options.h"
#include "common/parameter_space.h"
#include "server/shard/shard_owner.h"

namespace optshard {

// Bound to the trainer's thread, except owner().view().
class RankHost {
 public:
  // Errors as the constructor of ShardedOptimizer.
  static absl::StatusOr<std::unique_ptr<RankHost>> Start(
      const ShardedOptimizerOptions& options, const ParameterSpace& space, const std::string& rule,
      const std::vector<Hyperparameters>& hyperparameters);

  // Without Stop it looks to the others like a death of this rank.
  ~RankHost();

  // Leaves the job in good order; a coordinator in this process goes on until all have left, for
  // `timeout` at most.
  absl::Status Stop(absl::Duration timeout);

  ShardOwner& owner();
  const ShardOwner& owner() const;
  const std::string& owner_address() const;

 private:
  class Impl;
  explicit RankHost(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_RANK_HOST_H_

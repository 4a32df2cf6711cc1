// The checkpoints and models that a trainer asks for.
#ifndef OPTSHARD_CLIENT_OWNER_CHECKPOINT_SAVING_H_
#define OPTSHARD_CLIENT_OWNER_CHECKPOINT_SAVING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/control/checkpoint_call_rpc.h"
#include "client/owner/owner_link.h"
#include "client/sharded_optimizer_options.h"
#include "common/ids.h"
#include "common/rpc/kept_channels_rpc.h"

namespace optshard {

// One at a time: what is written goes on in the background until the next call here. Bound to the
// trainer's thread.
class CheckpointSaving {
 public:
  // Both outlive it.
  CheckpointSaving(const OwnerLink* owner, const ShardedOptimizerOptions* options)
      : owner_(*owner), options_(*options) {}

  // Waits for the former one first, and returns its error. Returns once this rank's owner has
  // opened the snapshot, which is of `finished`.
  absl::Status Save(const std::string& directory, const std::vector<std::string>& labels,
                    StepNumber finished);

  // Likewise a model (CheckpointCall::Request::model_shard_bytes).
  absl::Status Export(const std::string& directory, int64_t shard_bytes, StepNumber finished);

  // The path of the last one, once it is committed; "" where none was asked for. Its error is
  // returned once.
  absl::StatusOr<std::string> Wait();

  // Whether one was asked for whose end is not known.
  bool is_pending() const { return call_ != nullptr; }

 private:
  absl::Status Begin(CheckpointCall::Request request, StepNumber finished);

  const OwnerLink& owner_;
  const ShardedOptimizerOptions& options_;
  KeptChannels channels_{1};
  std::unique_ptr<CheckpointCall> call_;  // that nobody has waited for
  std::string last_path_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_CHECKPOINT_SAVING_H_

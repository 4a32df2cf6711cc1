// Asks a coordinator for a checkpoint, or for a model, and follows the save.
#ifndef OPTSHARD_CLIENT_CONTROL_CHECKPOINT_CALL_RPC_H_
#define OPTSHARD_CLIENT_CONTROL_CHECKPOINT_CALL_RPC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/ids.h"

namespace optshard {

class KeptChannels;  // common/rpc/kept_channels_rpc.h

// Checkpoints.SaveCheckpoint or ExportModel, whose errors all calls here return. Thread-safe. Its
// end leaves the save to itself.
class CheckpointCall {
 public:
  struct Request {
    std::string coordinator;  // HOST:PORT
    std::string optimizer = "default";
    std::string directory;  // empty: the coordinator's --checkpoint-dir
    std::vector<std::string> labels;
    // A model is exported to the directory instead, with so many bytes of tensors in a file, 0
    // being Hugging Face's 5 GB. It has no labels.
    absl::optional<int64_t> model_shard_bytes;
    absl::optional<StepNumber> step;   // which is to be saved, and no other
    absl::optional<Rank> rank;         // whose owner AwaitOpened waits for; absent: all
    KeptChannels* channels = nullptr;  // to the coordinator; null: a connection of the call's own
  };

  struct Progress {
    std::string summary;  // one line for people
    int64_t bytes = 0;    // that are written
    int64_t all_bytes = 0;
  };

  struct Saved {
    std::string directory;
    std::string name;  // "step-000000001000"; empty: a model, which is the directory itself
    StepNumber step = 0;
    int64_t bytes = 0;
    std::vector<std::string> removed;  // older ones that went for it
  };

  static std::unique_ptr<CheckpointCall> Start(const Request& request);
  virtual ~CheckpointCall() = default;

  // Waits until the owner has opened its snapshot: what changes from then on is not saved.
  // DEADLINE_EXCEEDED, with how far the save is, where it has not within `timeout`.
  virtual absl::Status AwaitOpened(absl::Duration timeout) = 0;

  // Waits until the checkpoint or the model is committed. DEADLINE_EXCEEDED likewise; the save goes
  // on.
  virtual absl::StatusOr<Saved> Await(absl::Duration timeout) = 0;

  virtual Progress progress() const = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_CONTROL_CHECKPOINT_CALL_RPC_H_

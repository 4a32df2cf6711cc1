// What a trainer asks before it goes on from a checkpoint.
#ifndef OPTSHARD_CLIENT_CHECKPOINT_DIRECTORY_H_
#define OPTSHARD_CLIENT_CHECKPOINT_DIRECTORY_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "client/sharded_optimizer_options.h"

namespace optshard {

// The directory to which an optimizer saves its checkpoints. Errors are thrown as StatusError:
// those of docs/checkpoint_format.md, "What loads, and what is refused", and of files. Each call
// looks anew. Thread-safe.
class CheckpointDirectory {
 public:
  // Checkpoints of the options' job and optimizer.
  CheckpointDirectory(std::string path, const ShardedOptimizerOptions& options)
      : path_(std::move(path)), job_(options.job), optimizer_(options.optimizer) {}

  // The name of the newest committed checkpoint, such as "step-000000001000"; nothing where there
  // is none, or no such directory: the job begins.
  absl::optional<std::string> newest() const;

  // The blob of each rank that saved it (ShardedOptimizer::set_blob), by rank; empty of one that
  // kept none. For another number of ranks; with the same one, ShardedOptimizer::blob() has this
  // rank's after load_checkpoint().
  std::vector<std::string> blobs(const std::string& name) const;

 private:
  const std::string path_;
  const std::string job_;
  const std::string optimizer_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_CHECKPOINT_DIRECTORY_H_

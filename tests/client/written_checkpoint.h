// Checkpoints that ranks write of what they keep, as their shard owners would.
#ifndef OPTSHARD_TESTS_CLIENT_WRITTEN_CHECKPOINT_H_
#define OPTSHARD_TESTS_CLIENT_WRITTEN_CHECKPOINT_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/sharded_optimizer.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/checkpoint/commit.h"
#include "server/checkpoint/manifest_json.h"

namespace optshard::testing {

// A new directory below the test's own.
std::string NewCheckpointRoot();

// One checkpoint of one optimizer. Thread-safe.
class WrittenCheckpoint {
 public:
  explicit WrittenCheckpoint(std::string root) : root_(std::move(root)) {}

  // Each rank, between the same steps. `parameters` are the optimizer's.
  void WriteShare(ShardedOptimizer& optimizer, const std::vector<at::Tensor>& parameters,
                  const std::string& blob = "");
  // Once all have written. The checkpoint's name.
  std::string Commit();

  const std::string& root() const { return root_; }

 private:
  const std::string root_;
  absl::Mutex mutex_;
  NewCheckpoint made_ ABSL_GUARDED_BY(mutex_);
  CheckpointManifest description_ ABSL_GUARDED_BY(mutex_);
  std::vector<OwnerPart> parts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_CLIENT_WRITTEN_CHECKPOINT_H_

// Rules that need whole parameters, on a device.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_SEQUENCED_RULE_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_SEQUENCED_RULE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/update/cuda/launch_sequence.h"
#include "server/update/executor.h"

namespace optshard {

// Immutable.
class SequencedRule {
 public:
  virtual ~SequencedRule() = default;

  // Null where no kernels of such a rule of that name are linked in.
  static std::unique_ptr<SequencedRule> Find(const std::string& rule);

  // Whether sequences have products of matrices.
  virtual bool MultipliesMatrices() const { return false; }

  // The tasks in order, in pieces that need at most so much workspace, or that are one task. Those
  // without elements may be missing.
  std::vector<absl::Span<const UpdateTask>> Batches(absl::Span<const UpdateTask> tasks,
                                                    int64_t most_bytes) const;

  // How much of the device's memory the tasks compute in.
  int64_t WorkspaceBytes(absl::Span<const UpdateTask> tasks) const;

  // `workspace`: so much, 64-byte aligned. The tasks and what they point to stay until the
  // sequence's tables are copied. Each has its parameter's shape. Errors of LaunchTable::For.
  virtual absl::StatusOr<LaunchSequence> SequenceOf(absl::Span<const UpdateTask> tasks,
                                                    void* workspace) const = 0;

 private:
  // Of a task with elements; a multiple of 64.
  virtual int64_t BytesOf(const UpdateTask& task) const = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_SEQUENCED_RULE_H_

// Counts what a trainer writes to its parameters' values, as far as their tensors know of it.
#ifndef OPTSHARD_CLIENT_REPLICA_PARAMETER_VERSIONS_H_
#define OPTSHARD_CLIENT_REPLICA_PARAMETER_VERSIONS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/shard/snapshot/parameter_memory.h"

namespace optshard {

// An operation that writes in place raises the tensor's version, at its end. What is written
// through `data()` or a pointer does not. Any thread may count; the rest is bound to the trainer's
// thread.
class ParameterVersions final : public TrainerWrites {
 public:
  // What was written to it before does not count.
  void Add(const at::Tensor& parameter);
  // Not where a parameter was made in inference mode: it has no version.
  bool are_known() const { return are_known_; }

  uint64_t count() const override;
  bool are_expected() const override;

  // The trainer has put values elsewhere, which are about to be copied to where they were.
  void CountMove();

  // All ranks have the same values now: what was written before says nothing of what will be.
  void ExpectNone();

  // As long as it lives, versions are raised by this library.
  class Own {
   public:
    explicit Own(ParameterVersions* versions);
    ~Own();
    Own(const Own&) = delete;
    Own& operator=(const Own&) = delete;

   private:
    ParameterVersions& versions_;
  };

 private:
  uint64_t Raised() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  uint64_t Count() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return is_own_ ? before_own_ : Raised() - own_;
  }

  bool are_known_ = true;
  mutable absl::Mutex mutex_;
  // By parameter. They stay the tensors', whatever memory those get.
  std::vector<c10::VariableVersion> versions_ ABSL_GUARDED_BY(mutex_);
  uint64_t moves_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t own_ ABSL_GUARDED_BY(mutex_) = 0;  // of what was raised
  bool is_own_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t before_own_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t none_expected_at_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_PARAMETER_VERSIONS_H_

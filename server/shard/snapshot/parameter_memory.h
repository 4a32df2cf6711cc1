// Where the values of a rank's parameters lie between the calls of its trainer.
#ifndef OPTSHARD_SERVER_SHARD_SNAPSHOT_PARAMETER_MEMORY_H_
#define OPTSHARD_SERVER_SHARD_SNAPSHOT_PARAMETER_MEMORY_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/buffer.h"

namespace optshard {

// Tells whether the trainer itself writes to its parameters' values, between its calls. Any thread.
class TrainerWrites {
 public:
  virtual ~TrainerWrites() = default;

  // Grows with each write, at its end: those that this process has learned of.
  virtual uint64_t count() const = 0;
  // Likewise, of all until now. A trainer that has another process is asked for it, and waited for;
  // errors where it does not say.
  virtual absl::StatusOr<uint64_t> CountNow() const { return count(); }
  // The calls in which it did not write that this process has learned of, each with the count until
  // then; 0 where CountNow never fails.
  virtual uint64_t calls() const { return 0; }
  // Whether the trainer is known to do so: then it may do so at any time.
  virtual bool are_expected() const = 0;
};

struct ParameterMemory {
  std::vector<ConstBuffer> values;  // by parameter; no array of one without elements
  // What keeps that memory, whatever the trainer does with its tensors meanwhile.
  std::vector<std::shared_ptr<const void>> keeps;
  std::shared_ptr<const TrainerWrites> writes;  // null: nobody knows of them
  // Of values on a device: on which the trainer writes to them. What it writes on another one while
  // they are copied may be in the copy.
  void* stream = nullptr;
};

// The present one. Thread-safe.
class ParameterPlace {
 public:
  void Set(std::shared_ptr<const ParameterMemory> memory) {
    absl::MutexLock lock(&mutex_);
    memory_.swap(memory);
  }

  // Null where none is known yet.
  std::shared_ptr<const ParameterMemory> Get() const {
    absl::MutexLock lock(&mutex_);
    return memory_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<const ParameterMemory> memory_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SNAPSHOT_PARAMETER_MEMORY_H_

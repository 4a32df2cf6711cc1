// What the trainers of a rank, which have other processes, write to its parameters' values between
// their calls.
#ifndef OPTSHARD_SERVER_NODE_ATTACHED_WRITES_H_
#define OPTSHARD_SERVER_NODE_ATTACHED_WRITES_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "common/attach/write_counts.h"
#include "common/ids.h"
#include "server/shard/snapshot/parameter_memory.h"

namespace optshard {

// A trainer tells with each request how often it has written, and is asked when it matters. One
// that goes without leaving may have written in its last moment: that counts as a write. Without a
// trainer, before its first request, and once it is about to leave, writes are expected.
// Thread-safe.
class AttachedWrites final : public TrainerWrites {
 public:
  explicit AttachedWrites(Rank rank) : rank_(rank) {}

  // The rank has another trainer, of whose process `asker` asks.
  void Seat(std::shared_ptr<WriteCountAsker> asker);
  // With a request of the present trainer, which does not write before that is answered.
  void Told(const WriteCount& count);
  // The present trainer will write what it likes once EndLeave has been called: then nothing of it
  // counts any more. Whoever copies does so between the two.
  void BeginLeave();
  void EndLeave();
  // It is gone, whether it has left or not.
  void Gone();

  uint64_t count() const override;
  bool are_expected() const override;
  // UNAVAILABLE, DEADLINE_EXCEEDED naming the rank where its trainer does not say.
  absl::StatusOr<uint64_t> CountNow() const override;
  uint64_t calls() const override;

 private:
  struct Known {
    absl::optional<uint64_t> told = absl::nullopt;  // by the present trainer
    bool are_expected = true;
    uint64_t count = 0;
  };
  void Take(const WriteCount& count) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LetGo() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Rank rank_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<WriteCountAsker> asker_ ABSL_GUARDED_BY(mutex_);  // null: nobody is to be asked
  bool is_leaving_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable Known known_ ABSL_GUARDED_BY(mutex_);  // who asks learns
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_ATTACHED_WRITES_H_

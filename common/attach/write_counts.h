// How a shard server asks a trainer, at any time, how often that has written to its parameters'
// values: the tensors' versions, which only the trainer's process has. A pair of sockets, whose
// messages have a fixed size; who is asked answers from a thread of its own.
#ifndef OPTSHARD_COMMON_ATTACH_WRITE_COUNTS_H_
#define OPTSHARD_COMMON_ATTACH_WRITE_COUNTS_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/link/unique_fd.h"

namespace optshard {

struct WriteCount {
  uint64_t writes = 0;  // another number after each write, at its end
  bool are_expected = true;
};

// The server's end of the pair. Thread-safe, but for the trainer's end, which is one thread's.
class WriteCountAsker {
 public:
  // RESOURCE_EXHAUSTED where this process may open no more descriptors.
  static absl::StatusOr<std::unique_ptr<WriteCountAsker>> Create();

  // The other end, for the trainer, until it is given away: then only the trainer has it, and its
  // end is seen.
  int trainer_fd() const { return trainer_.get(); }
  void GiveAway() { trainer_ = UniqueFd(); }

  // UNAVAILABLE where the trainer has gone; DEADLINE_EXCEEDED where it does not answer.
  absl::StatusOr<WriteCount> Ask(absl::Duration timeout);

  // Nobody is asked any more, and who waits for an answer is told. Idempotent.
  void HangUp();

 private:
  WriteCountAsker(UniqueFd server, UniqueFd trainer)
      : server_(static_cast<UniqueFd&&>(server)), trainer_(static_cast<UniqueFd&&>(trainer)) {}
  const UniqueFd server_;
  UniqueFd trainer_;
  absl::Mutex mutex_;  // of who asks
  uint64_t asked_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The trainer's end. Answers what was asked at `fd`, once it is readable; false where nobody asks
// any more.
bool AnswerWriteCounts(int fd, absl::FunctionRef<WriteCount()> count);
}  // namespace optshard

#endif  // OPTSHARD_COMMON_ATTACH_WRITE_COUNTS_H_

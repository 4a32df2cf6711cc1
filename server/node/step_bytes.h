// Bytes that go with steps, in memory that may outlive the process that writes them: those that
// count, and those that are offered with a step that may not come to its end.
#ifndef OPTSHARD_SERVER_NODE_STEP_BYTES_H_
#define OPTSHARD_SERVER_NODE_STEP_BYTES_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "common/ids.h"

namespace optshard {

// A view of memory that is zeros or was written by another one of the same size. Thread-compatible.
// A process that is killed at any instruction leaves bytes that can be read.
class StepBytes {
 public:
  struct Kept {
    StepNumber step = 0;  // with which they came; 0: none came yet
    std::string bytes;
  };

  // Of the memory for at most so many bytes.
  static size_t Bytes(size_t most);

  // `memory`, of Bytes(most), is aligned to a cache line and outlives this.
  StepBytes(void* memory, size_t most);

  // Call one of the two before `step` begins: the bytes go with it, or none do. They are valid once
  // the step is finished. More than `most` end the process.
  void Offer(StepNumber step, absl::string_view bytes);
  void OfferNothing(StepNumber step);
  // After a skipped call: what was offered with `step` belongs to `finished` instead.
  void MoveOffer(StepNumber step, StepNumber finished);
  // None came yet: steps are counted anew, or from an earlier one.
  void Clear() { OfferNothing(0); }
  // The last valid ones after step `finished`.
  Kept After(StepNumber finished) const;

 private:
  struct Slot;

  Slot& slot(int index) const;
  // Which slot holds what counts after `finished`; -1: none does.
  int Current(StepNumber finished) const;

  void* const memory_;
  const size_t most_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_STEP_BYTES_H_

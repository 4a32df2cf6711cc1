// Records, in the same memory as the state, which step the state belongs to, whether a step was
// being applied, and how often each parameter was updated. A process that takes over the memory
// learns from it whether the state can be used.
//
//   line 0     generation of the plan; progress
//   then       the version of the step counts, and of each own bucket
//   then       the parameters' step counts, and their scalar slots
#ifndef OPTSHARD_SERVER_SHARD_STATE_SHARD_LEDGER_H_
#define OPTSHARD_SERVER_SHARD_STATE_SHARD_LEDGER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/types/optional.h"
#include "common/ids.h"
#include "common/membership/membership.h"
#include "server/shard/state/replacing.h"

namespace optshard {

// A view of memory that is zeros or an earlier ledger of as many parameters and buckets. Written by
// the step's thread, read by any. Each word is stored whole, in program order: enough for a process
// that is killed at any instruction.
class ShardLedger {
 public:
  // The last step that can be counted: there are 56 bits for it here, and doubles, which step
  // counts are read as, count so far.
  static constexpr StepNumber kLastStep = (StepNumber{1} << 53) - 1;

  // Of what is written as one: a sequence number, odd while it is written, and the step whose
  // values it holds. Mutable for readers: they look at a sequence by adding 0, which orders their
  // copies before it.
  struct Version {
    mutable std::atomic<uint64_t> sequence;
    std::atomic<StepNumber> step;
  };

  static size_t Bytes(int parameters, int own_buckets, int scalar_slots);

  // What an earlier ledger in this memory recorded; nothing if there was none.
  static absl::optional<KeptState> Read(const void* memory);
  // replacing() of an earlier ledger in this memory.
  static Replacing ReadReplacing(const void* memory);

  // `memory` is aligned to a cache line and outlives this.
  ShardLedger(void* memory, int parameters, int own_buckets, int scalar_slots);

  // Starts the record: the state is that of `progress`, and the plan of this generation steps it.
  // Where the progress is kTorn, replacing() is `replacing` from now on, whatever an earlier ledger
  // in this memory says.
  void Begin(Generation generation, const StepProgress& progress,
             Replacing replacing = Replacing::kNothing);

  // `outcome` is what a process that is killed leaves behind: kIdle between steps, kTorn while a
  // step is being applied, kApplied once this shard has done its part of it.
  void SetProgress(const StepProgress& progress);
  StepProgress progress() const;

  // From a call with another value until one with kNothing, the progress is kTorn: what is here is
  // the state of no step.
  void SetReplacing(Replacing what);
  // kNothing where it is a step that has torn the state, too.
  Replacing replacing() const;
  // Whether the parameters, too, are those of no step. All owners of a generation begin with the
  // same answer: the plan tells them (PlanReady::is_torn).
  bool has_no_step() const {
    return progress().outcome == StepOutcome::kTorn && replacing() != Replacing::kState;
  }

  // Makes all versions readable again, where an earlier process ended while it wrote. What it wrote
  // then may be half of the old and half of the new; whether that matters, progress() says.
  void EndInterruptedWrites();

  // Makes no version readable any more: a process goes on with another ledger.
  void EndReads();

  Version& counts_version() const { return versions_[0]; }
  Version& version(int own) const { return versions_[1 + own]; }
  std::atomic<StepNumber>& step_count(int parameter) const { return step_counts_[parameter]; }
  // Written and read with the step counts, under their version.
  std::atomic<double>& scalar_slot(int parameter, int slot) const {
    return scalar_slots_[parameter * scalar_slot_count_ + slot];
  }

 private:
  struct Head;

  Head* head_;
  Version* versions_;
  std::atomic<StepNumber>* step_counts_;
  std::atomic<double>* scalar_slots_;
  int version_count_;
  int scalar_slot_count_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_SHARD_LEDGER_H_

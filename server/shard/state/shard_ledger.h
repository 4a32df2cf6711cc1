// A shard's own account of its state, in the memory that the state lies in: after which step it
// is, whether one was being applied, how often each parameter was updated. Whoever finds the memory
// after its process has ended knows from it what it is worth.
//
//   line 0     generation of the plan; progress
//   then       the version of the step counts, and of each own bucket
//   then       the parameters' step counts
#ifndef OPTSHARD_SERVER_SHARD_STATE_SHARD_LEDGER_H_
#define OPTSHARD_SERVER_SHARD_STATE_SHARD_LEDGER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/types/optional.h"
#include "common/ids.h"
#include "common/membership/membership.h"

namespace optshard {

// A view of memory that is zeros or an earlier ledger of as many parameters and buckets. Written by
// the step's thread, read by any. Each word is stored whole, in program order: enough for a process
// that is killed at any instruction.
class ShardLedger {
 public:
  // Of what is written as one: a sequence number, odd while it is written, and the step whose
  // values it holds. Mutable for readers: they look at a sequence by adding 0, which orders their
  // copies before it.
  struct Version {
    mutable std::atomic<uint64_t> sequence;
    std::atomic<StepNumber> step;
  };

  static size_t Bytes(int parameters, int own_buckets);

  // What the memory of an earlier ledger says; nothing where none has begun there.
  static absl::optional<KeptState> Read(const void* memory);

  // `memory` is aligned to a cache line and outlives this.
  ShardLedger(void* memory, int own_buckets);

  // From now on the state is that of `progress`, stepped by the plan of this generation.
  void Begin(Generation generation, const StepProgress& progress);

  // Of `outcome`, what a process that is killed leaves behind: kIdle, kTorn while a step is being
  // applied, kApplied when all that is this shard's to do is done.
  void SetProgress(const StepProgress& progress);
  StepProgress progress() const;

  Version& counts_version() const { return versions_[0]; }
  Version& version(int own) const { return versions_[1 + own]; }
  std::atomic<StepNumber>& step_count(int parameter) const { return step_counts_[parameter]; }

 private:
  struct Head;

  Head* head_;
  Version* versions_;
  std::atomic<StepNumber>* step_counts_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_SHARD_LEDGER_H_

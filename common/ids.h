// The names by which everything in a job is keyed: (job, optimizer, generation, rank, incarnation).
#ifndef OPTSHARD_COMMON_IDS_H_
#define OPTSHARD_COMMON_IDS_H_

#include <cstdint>
#include <string>

namespace optshard {

// A data-parallel worker of the job, 0 .. world_size-1 (torchrun's RANK).
using Rank = int32_t;

// Number of the plan; grows by one with every plan of an optimizer. Every mutating call carries it.
using Generation = uint64_t;

// Number of a process's life under a rank; a successor has a higher one. 0 is nobody. Those that a
// coordinator gives out carry its epoch (common/incarnation.h).
using Incarnation = uint64_t;

// A step of the optimizer; the first one is 1, 0 means "none yet".
using StepNumber = uint64_t;

// A call of step() that finished a step or was skipped, because nobody had a gradient; the first
// one is 1. A call that failed or was refused has no number: the next one gets it.
using CallNumber = uint64_t;

// One process's membership of one optimizer of a job.
struct MemberId {
  std::string job;
  std::string optimizer;
  Rank rank = -1;
  Incarnation incarnation = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_IDS_H_

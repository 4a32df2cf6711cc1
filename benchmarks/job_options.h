// The flags of a benchmark's program that is one rank of a job of ours, as options.
#ifndef OPTSHARD_BENCHMARKS_JOB_OPTIONS_H_
#define OPTSHARD_BENCHMARKS_JOB_OPTIONS_H_

#include "client/sharded_optimizer_options.h"

namespace optshard {

// One thread; what no flag gives has its default. Throws std::invalid_argument where a flag has no
// meaning.
ShardedOptimizerOptions JobOptions();

}  // namespace optshard

#endif  // OPTSHARD_BENCHMARKS_JOB_OPTIONS_H_

// The table of all rules, trained by a process of a job.
#ifndef OPTSHARD_TESTS_TESTING_TABLE_TRAINER_H_
#define OPTSHARD_TESTS_TESTING_TABLE_TRAINER_H_

#include <string>
#include <vector>

#include "client/sharded_optimizer_options.h"

namespace optshard::testing {

// Trains each job of the table (tests/testing/rule_table.h) with each of these partition policies
// that goes with its rules, an optimizer after another, and writes what each has left to the file
// DIRECTORY/OPTIMIZER.RANK (tests/testing/trained_tensors.h). Slots are read where
// the shard owner is: in this process, or over gRPC in a shard server. `states`: how many of the
// forms of state, the first ones. Throws as ShardedOptimizer.
void TrainTable(const ShardedOptimizerOptions& options, const std::vector<std::string>& policies,
                int states, const std::string& directory);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_TABLE_TRAINER_H_

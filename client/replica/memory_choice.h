// Decides whether a trainer's tensors are moved into flat memory.
#ifndef OPTSHARD_CLIENT_REPLICA_MEMORY_CHOICE_H_
#define OPTSHARD_CLIENT_REPLICA_MEMORY_CHOICE_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/replica/parameter_list.h"
#include "client/sharded_optimizer_options.h"

namespace optshard {

struct MemoryChoice {
  bool flat = true;
  bool may_stay = false;  // where the flat memory cannot be allocated, the tensors stay as well
  std::string warning;    // what the user did not ask for and should know; empty for nothing
};

// INVALID_ARGUMENT where parameters_as_bucket_view is off although another option needs the flat
// memory.
absl::StatusOr<MemoryChoice> ChooseMemory(const ShardedOptimizerOptions& options,
                                          const ParameterList& list);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_MEMORY_CHOICE_H_

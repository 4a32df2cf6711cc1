// What a param group or parameters that are added make of an optimizer: the checks of the
// construction, and the spec that all ranks then propose.
#ifndef OPTSHARD_CLIENT_OWNER_PARAMETER_ADMISSION_H_
#define OPTSHARD_CLIENT_OWNER_PARAMETER_ADMISSION_H_

#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "client/owner/parameter_addition.h"
#include "client/replica/flat_memory.h"
#include "client/replica/parameter_list.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer_options.h"
#include "common/optimizer_spec.h"

namespace optshard {

struct ParameterAdmission {
  ParameterAddition addition;  // each parameter once; of a group: all options set
  ParameterList list;          // of all groups, with what is to be warned of it
  ParameterList added;         // ListOfAdmission
  OptimizerSpec spec;
};

// Adds `given` to the groups `present` of an optimizer of this spec. Changes nothing. Throws
// StatusError:
//   INVALID_ARGUMENT  as at construction, for the group, its options or a parameter; it has no
//                     parameters; there is no such group, or a parameter is in it already
//   UNIMPLEMENTED     an optimizer class steps the group
ParameterAdmission Admit(const std::vector<torch::optim::OptimizerParamGroup>& present,
                         const ParameterAddition& given, const RuleOptions& defaults,
                         const OptimizerSpec& spec, const ShardedOptimizerOptions& options);

// Where the added tensors go.
struct AddedMemory {
  // Private memory to move them to; none: they stay, or the owner has memory for them.
  absl::optional<FlatMemory> flat;
  std::string warning;  // empty for none
};

// `linked`: the owner has the memory of all tensors, since other processes reach it; `flat`: those
// of the construction lie in flat memory. RESOURCE_EXHAUSTED; INVALID_ARGUMENT naming a tensor that
// would have to move and should not.
absl::StatusOr<AddedMemory> MemoryForAdded(const ParameterList& added,
                                           const ShardedOptimizerOptions& options, bool linked,
                                           bool flat);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_PARAMETER_ADMISSION_H_

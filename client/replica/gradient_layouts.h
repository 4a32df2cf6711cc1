// Whether the rules take a trainer's gradients as they are: dense or sparse.
#ifndef OPTSHARD_CLIENT_REPLICA_GRADIENT_LAYOUTS_H_
#define OPTSHARD_CLIENT_REPLICA_GRADIENT_LAYOUTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/replica/parameter_list.h"
#include "common/hyperparameters.h"
#include "common/state_format.h"
#include "server/update/group_update.h"

namespace optshard {

// Bound to the trainer's thread.
class GradientLayouts {
 public:
  // `state` is the format of the slots.
  GradientLayouts(const ParameterList& list, std::vector<GroupUpdate> groups, StateFormat state);

  // Of the present gradients under these (validated) hyperparameters, by group. Returns by group
  // whether a sparse gradient changes all rows (Replica::Gather). INVALID_ARGUMENT naming the
  // parameter, as CheckTakesGradient; of a sparse gradient also as CheckGradient.
  absl::StatusOr<std::vector<bool>> Check(absl::Span<const Hyperparameters> hyperparameters) const;

 private:
  const ParameterList list_;
  const std::vector<GroupUpdate> groups_;
  const StateFormat state_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_GRADIENT_LAYOUTS_H_

// Which slots a whole state dict has of each parameter, and which rank keeps them.
#ifndef OPTSHARD_CLIENT_OWNER_STATE_LAYOUT_H_
#define OPTSHARD_CLIENT_OWNER_STATE_LAYOUT_H_

#include <vector>

#include "client/replica/parameter_owners.h"
#include "common/state_options.h"
#include "server/shard/state/parameter_slots.h"
#include "server/update/group_update.h"

namespace optshard {

// As the owners' own: it follows from what the optimizer was constructed with. Thread-compatible
// value type. What is pointed to outlives it.
struct StateLayout {
  const ParameterOwners* owners = nullptr;
  const std::vector<GroupUpdate>* groups = nullptr;
  StateOptions state;
  bool replicated = false;  // every rank keeps all

  int parameter_count() const { return owners->space().parameter_count(); }
  const ParameterSpec& parameter(int index) const { return owners->space().parameter(index); }
  const UpdateRule& rule(int index) const { return *(*groups)[owners->GroupOf(index)].rule; }
  // As StateAccess::Slots.
  std::vector<ParameterSlot> Slots(int index) const {
    return SlotsOfParameter(parameter(index), (*groups)[owners->GroupOf(index)], state);
  }
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_STATE_LAYOUT_H_

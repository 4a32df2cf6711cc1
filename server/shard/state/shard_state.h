// What a shard owner keeps of its parameters, by slot names, to be read and replaced between steps.
#ifndef OPTSHARD_SERVER_SHARD_STATE_SHARD_STATE_H_
#define OPTSHARD_SERVER_SHARD_STATE_SHARD_STATE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/parameter_space.h"
#include "common/state_options.h"
#include "server/shard/state/parameter_slots.h"
#include "server/shard/state/shard_store.h"
#include "server/update/group_update.h"

namespace optshard {

// Bound to the step's thread.
class ShardState {
 public:
  struct Options {
    const ParameterSpace* space = nullptr;
    const std::vector<GroupUpdate>* groups = nullptr;
    StateOptions state;
    ShardStore* store = nullptr;
  };  // everything that is pointed to outlives this

  explicit ShardState(const Options& options) : options_(options) {}

  // All slots of the parameter, as they would be where this rank owns some of it. "step" is among
  // them with every rule: the first update of some is another one than the later ones.
  std::vector<ParameterSlot> Slots(int parameter) const;

  // Copies elements [offset, offset + size) of a slot of the parameter, which are owned here; of
  // one with a shape of its own, elements of that shape. double holds the values of every dtype
  // exactly.
  void Read(int parameter, const ParameterSlot& slot, int64_t offset_elements,
            absl::Span<double> out) const;

  // Replaces them. `values` are values of the slot's dtype; "step" is an integer from 0 on. A range
  // of kElements as for ShardStore::Write; what is kept in 8 bits is coded again.
  void Write(int parameter, const ParameterSlot& slot, int64_t offset_elements,
             absl::Span<const double> values);

 private:
  const Options options_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_SHARD_STATE_H_

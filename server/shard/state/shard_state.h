// What a shard owner keeps of its parameters, by slot names, to be read and replaced between steps.
#ifndef OPTSHARD_SERVER_SHARD_STATE_SHARD_STATE_H_
#define OPTSHARD_SERVER_SHARD_STATE_SHARD_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/parameter_space.h"
#include "common/state_options.h"
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

  enum class SlotKind {
    kElements,     // a value for each element
    kCorrections,  // likewise, in int8: what a 16-bit parameter lacks to its master
    kScalar,       // one for the whole parameter
    kStep,         // likewise: how often the parameter was updated
  };
  struct Slot {
    std::string name;
    DType dtype = DType::kFloat32;  // not of corrections
    SlotKind kind = SlotKind::kElements;
    int index = 0;  // among those of its kind, as the store has them

    bool is_scalar() const { return kind == SlotKind::kScalar || kind == SlotKind::kStep; }
  };

  explicit ShardState(const Options& options) : options_(options) {}

  // All slots of the parameter, by PyTorch's names, as they would be where this rank owns some of
  // it: the rule's, "master" where there is one, and always "step", also of a rule of which PyTorch
  // keeps no such slot: the first update of some rules is another one than the later ones.
  std::vector<Slot> Slots(int parameter) const;

  // Copies elements [offset, offset + size) of a slot of the parameter, which are owned here. Only
  // element 0 of a slot that is no kElements. double holds the values of every dtype exactly.
  void Read(int parameter, const Slot& slot, int64_t offset_elements, absl::Span<double> out) const;

  // Replaces them. `values` are values of the slot's dtype; "step" is an integer from 0 on. A range
  // of kElements as for ShardStore::Write; what is kept in 8 bits is coded again.
  void Write(int parameter, const Slot& slot, int64_t offset_elements,
             absl::Span<const double> values);

 private:
  const Options options_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_SHARD_STATE_H_

// Reads and replaces what a shard owner keeps of its parameters, wherever that owner runs.
#ifndef OPTSHARD_SERVER_SHARD_STATE_STATE_ACCESS_H_
#define OPTSHARD_SERVER_SHARD_STATE_STATE_ACCESS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/shard/state/parameter_slots.h"
#include "server/shard/state/replacing.h"

namespace optshard {

// Between steps, bound to the thread that steps. One call moves at most kStateWindowElements
// (common/attach/doorbell.h) where the owner is in another process.
class StateAccess {
 public:
  virtual ~StateAccess() = default;

  // All slots of one of the optimizer's parameters, as they would be where this rank owns some of
  // it. "step" is among them with every rule: the first update of some is another one than the
  // later ones.
  virtual std::vector<ParameterSlot> Slots(int parameter) const = 0;

  // Copies elements [offset, offset + size) of a slot; `slot` is its index in Slots. Elements of
  // one with a shape of its own are counted in that shape; one that is one number has one element.
  // double holds the values of every dtype exactly. Errors:
  //   INVALID_ARGUMENT  no such parameter or slot, or the elements are not all kept here
  //   DATA_LOSS         the state is torn, or was replaced in part
  virtual absl::Status Read(int parameter, int slot, int64_t offset_elements,
                            absl::Span<double> out) = 0;

  // Replaces them, rounded to what the slot can keep; what is kept in 8 bits is coded again.
  // INVALID_ARGUMENT as Read, and nothing has changed: a "step" that is no count (IsStepCount), a
  // correction that is not in int8; of a slot in 8 bits, elements that are not whole blocks: they
  // begin at a multiple of kCodeGrid, and are a multiple of it or reach to the end of what is owned
  // in a row.
  virtual absl::Status Write(int parameter, int slot, int64_t offset_elements,
                             absl::Span<const double> values) = 0;

  // For a replacement as a whole: takes memory for a second state, as before the first step, which
  // calls of Stage fill while what is kept stays as it is. With kState all slots, with kAll the
  // parameters too. Then all ranks' owners put it in place (ShardOwner::ReplaceState,
  // FinishLoading). What was staged before is dropped.
  //   RESOURCE_EXHAUSTED  no memory for it: need and limit
  //   DATA_LOSS           kState, and a step has torn the state, or the replacement of all has:
  //   then
  //                       the parameters are of no step, either, and become whole only as a whole
  virtual absl::Status BeginStaging(Replacing what) = 0;

  // As Write, of what is staged. ABORTED where nothing is: another owner may
  // have succeeded the one that began.
  virtual absl::Status Stage(int parameter, int slot, int64_t offset_elements,
                             absl::Span<const double> values) = 0;
  // Likewise as they are kept, at most kMaxShareBytes (common/byte_share.h): of a slot whose
  // elements are no codes, in its dtype(); of kParameterValues, for kAll, the parameter's own.
  static constexpr int kParameterValues = -1;
  virtual absl::Status StageBytes(int parameter, int slot, int64_t offset_elements,
                                  absl::Span<const char> values) = 0;
  // Where such values go, of any number: as many bytes, to be filled before the next call instead
  // of a call of StageBytes, whose errors it has. Empty where they do not lie in a row; always
  // where they lie in another process.
  virtual absl::StatusOr<absl::Span<char>> StagedMemory(int parameter, int slot,
                                                        int64_t offset_elements, int64_t bytes) = 0;

  // Gives the memory back. A step does so, too.
  virtual absl::Status DropStaged() = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_STATE_ACCESS_H_

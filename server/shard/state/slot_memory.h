// How the arrays of slots lie in memory: their types, sizes, initial values, and reading them while
// they are written.
#ifndef OPTSHARD_SERVER_SHARD_STATE_SLOT_MEMORY_H_
#define OPTSHARD_SERVER_SHARD_STATE_SLOT_MEMORY_H_

#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "common/block_code.h"
#include "common/buffer.h"
#include "common/dtype.h"
#include "common/parameter_space.h"
#include "common/state_options.h"
#include "server/update/slot_array.h"
#include "server/update/update_rule.h"

namespace optshard {

// Of one array. Thread-compatible value type.
struct SlotType {
  DType dtype = DType::kFloat32;
  absl::optional<BlockCode> code;  // the values are of type float32 then

  int64_t Bytes(int64_t elements) const;  // of the values alone, or of codes and scales
};

// Of a slot of the parameter, which has elements elsewhere, too.
SlotType SlotTypeOf(const StateOptions& options, const ParameterSpec& parameter, const Slot& slot);

// Of all slots and the master or correction of so many elements of the parameter, padding left out.
// Slots with a shape of their own count as a whole.
int64_t StateBytes(const StateOptions& options, const ParameterSpec& parameter,
                   const std::vector<Slot>& slots, int64_t elements);

// One array with a value for each element, padded to a cache line.
int64_t ArrayBytes(int64_t elements, DType dtype);

// Hands out arrays one after the other, from memory that is aligned to cache lines: codes, then
// their scales, each on a line of its own.
class SlotArrays {
 public:
  // What Take uses up of the memory.
  static int64_t Bytes(int64_t elements, const SlotType& type);

  explicit SlotArrays(void* memory) : next_(static_cast<uint8_t*>(memory)) {}
  SlotArray Take(int64_t elements, const SlotType& type);

  // Likewise for corrections, a byte each.
  static int64_t CorrectionBytes(int64_t elements);
  int8_t* TakeCorrections(int64_t elements);

 private:
  uint8_t* next_;
};

void FillSlot(const SlotArray& array, int64_t elements, double value);

// Replaces the values from element `first` on. Where the array is coded, `first` is a multiple of
// kCodeGrid, and so is `count`, or it reaches to the array's end. Values are rounded to what the
// array can keep.
void WriteSlot(const SlotArray& array, int64_t first, int64_t count, const double* from);

// Copies the values from element `first` on of an array of `elements`, of which its threads may be
// writing some: the copy is thrown away then. Each type's values are exact in double.
void ReadSlotRacily(const SlotArray& array, int64_t elements, int64_t first, int64_t count,
                    double* to);
void ReadCorrectionsRacily(const int8_t* from, int64_t count, double* to);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_SLOT_MEMORY_H_

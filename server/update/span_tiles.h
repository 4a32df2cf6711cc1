// Cuts a span whose arrays are of several types into tiles that a formula can run over.
#ifndef OPTSHARD_SERVER_UPDATE_SPAN_TILES_H_
#define OPTSHARD_SERVER_UPDATE_SPAN_TILES_H_

#include <cstdint>

#include "common/block_code.h"
#include "common/lines_ahead.h"
#include "server/update/slot_array.h"
#include "server/update/update_rule.h"

namespace optshard {

// Whether a span is long enough, and aligned, for its copies to be written past the caches; and so
// the parameter itself where it has a master, since then it is not read.
bool CanStream(const SpanUpdate& span);

// A tile is the span's next few elements with everything in T, what the formula computes in: the
// replicas' gradients averaged, arrays of other types widened and coded ones decoded into memory of
// this object, which stays in the first-level cache, and arrays of T where they lie. So memory is
// still read and written once. Wants the default floating-point mode. Thread-compatible; T is float
// or double.
//
//   SpanTiles<float> tiles(span);
//   while (tiles.Next()) {
//     ... update tiles.tile() ...
//     tiles.Finish();
//   }
template <typename T>
class SpanTiles {
 public:
  // `span` and what it points to outlive the object. Arrays are of T; where T is float, also of a
  // 16-bit type, and slots may be coded.
  explicit SpanTiles(const SpanUpdate& span);
  // What Finish has written is visible to whoever learns that this has returned.
  ~SpanTiles();
  SpanTiles(const SpanTiles&) = delete;
  SpanTiles& operator=(const SpanTiles&) = delete;

  // Makes the next tile. False: there is none.
  bool Next();
  // All of T; with several replicas' gradients, and with copies, only where those are float32 and
  // so is T. Valid until Finish.
  const SpanUpdate& tile() const { return tile_; }
  // Rounds what was widened and updated to its own type, encodes slots, and copies the parameter to
  // its replicas unless the formula's loop has.
  void Finish();

 private:
  // Short tiles wait least for the memory: what one loop over them has fetched ahead at its end,
  // the next one over the same arrays soon finds. Codes take arithmetic, which wants long loops
  // (docs/measurements/tiles.md).
  static constexpr int64_t kPlainElements = 512;
  static constexpr int64_t kCodedElements = 4096;
  // Only float has codes.
  static constexpr int64_t kMostElements =
      sizeof(T) == sizeof(float) ? kCodedElements : kPlainElements;
  static_assert(kCodedElements % kCodeGrid == 0, "a tile cuts no block");

  // The tile's elements of `array` in T: in place, or widened into `memory`.
  Buffer Load(Buffer array, T* memory) const;
  // The gradients and the parameter of the next tile are fetched while this one is decoded and
  // encoded.
  void PlanNext();
  void LoadGradient();
  void LoadParameter();
  void PublishParameter();
  // The tile of a parameter that has a master, in parameter_.
  ConstBuffer RoundedMaster();
  // Puts back what Load has given.
  void Store(Buffer loaded, Buffer array) const;
  // Likewise for arrays that may be coded.
  SlotArray LoadSlot(const SlotArray& slot, T* memory);
  void StoreSlot(const SlotArray& loaded, const SlotArray& slot);

  const SpanUpdate& span_;
  const int64_t coded_;  // slots
  // Whether the formula's loop writes the copies: where tiles are long enough for it to stream
  // them.
  const bool loop_copies_;
  const bool streams_;
  const int64_t elements_;  // of a tile, but for the last one
  int64_t begin_ = 0;
  SpanUpdate tile_;
  LinesAhead next_;
  alignas(64) T gradient_[kMostElements];
  alignas(64) T parameter_[kMostElements];
  alignas(64) T slots_[kMaxSlots][kMostElements];
};

extern template class SpanTiles<float>;
extern template class SpanTiles<double>;

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_SPAN_TILES_H_

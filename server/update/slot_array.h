// Where a slot's array begins and how it is kept.
#ifndef OPTSHARD_SERVER_UPDATE_SLOT_ARRAY_H_
#define OPTSHARD_SERVER_UPDATE_SLOT_ARRAY_H_

#include <cstdint>
#include <type_traits>

#include "common/block_code.h"
#include "common/buffer.h"
#include "common/dtype.h"

namespace optshard {

// An array of a plain type, or one in a block code: the seam for further formats. Does not own it.
// Thread-compatible.
class SlotArray {
 public:
  SlotArray() = default;
  // Implicit: whatever is a Buffer.
  template <typename T, typename = std::enable_if_t<std::is_convertible_v<T, Buffer>>>
  SlotArray(T plain) : plain_(plain) {}                  // NOLINT
  SlotArray(const CodedArray& coded) : coded_(coded) {}  // NOLINT

  explicit operator bool() const { return plain_ || is_coded(); }
  bool is_coded() const { return coded_.codes != nullptr; }

  // No array where it is coded, or where it is not.
  Buffer plain() const { return plain_; }
  const CodedArray& coded() const { return coded_; }
  template <typename T>
  T* As() const {
    return plain_.As<T>();
  }

  // What a formula sees: the array's own, or float32 of a coded one.
  DType dtype() const { return is_coded() ? DType::kFloat32 : plain_.dtype(); }
  // Of the values, or of the codes.
  const void* data() const { return is_coded() ? coded_.codes : plain_.data(); }

  // From element `index` on, the first of a block where it is coded; no array remains none.
  SlotArray From(int64_t index) const {
    SlotArray later;
    later.plain_ = plain_.From(index);
    later.coded_ = coded_.From(index);
    return later;
  }

  friend bool operator==(const SlotArray& a, const SlotArray& b) { return a.data() == b.data(); }
  friend bool operator!=(const SlotArray& a, const SlotArray& b) { return !(a == b); }

 private:
  Buffer plain_;
  CodedArray coded_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_SLOT_ARRAY_H_

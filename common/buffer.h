// Arrays in memory whose element type is known only when the program runs.
#ifndef OPTSHARD_COMMON_BUFFER_H_
#define OPTSHARD_COMMON_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/dtype.h"

namespace optshard {

// Where an array begins, if there is one, and what its elements are. Does not own them.
// Thread-compatible.
template <bool kReadOnly>
class BasicBuffer {
  template <typename T>
  using Element = std::conditional_t<kReadOnly, const T, T>;

 public:
  BasicBuffer() = default;
  BasicBuffer(Element<void>* data, DType dtype) : data_(data), dtype_(dtype) {}
  // Implicit, as from an array to a pointer.
  BasicBuffer(std::nullptr_t) {}                                                // NOLINT
  BasicBuffer(Element<float>* data) : data_(data), dtype_(DType::kFloat32) {}   // NOLINT
  BasicBuffer(Element<double>* data) : data_(data), dtype_(DType::kFloat64) {}  // NOLINT
  template <bool kOther, typename = std::enable_if_t<kReadOnly && !kOther>>
  BasicBuffer(BasicBuffer<kOther> other)  // NOLINT
      : data_(other.data()), dtype_(other.dtype()) {}

  Element<void>* data() const { return data_; }  // null: there is no array
  // T: the C++ type of the dtype.
  template <typename T>
  Element<T>* As() const {
    return static_cast<Element<T>*>(data_);
  }
  DType dtype() const { return dtype_; }
  explicit operator bool() const { return data_ != nullptr; }

  // From element `index` on; no array remains none.
  BasicBuffer From(int64_t index) const {
    if (data_ == nullptr) return *this;
    const auto offset = index * static_cast<int64_t>(SizeOf(dtype_));
    return BasicBuffer(static_cast<Element<char>*>(data_) + offset, dtype_);
  }

  // Whether both begin at the same place, or neither is an array.
  friend bool operator==(BasicBuffer a, BasicBuffer b) { return a.data_ == b.data_; }
  friend bool operator!=(BasicBuffer a, BasicBuffer b) { return !(a == b); }

 private:
  Element<void>* data_ = nullptr;
  DType dtype_ = DType::kFloat32;
};

using Buffer = BasicBuffer<false>;
using ConstBuffer = BasicBuffer<true>;

}  // namespace optshard

#endif  // OPTSHARD_COMMON_BUFFER_H_

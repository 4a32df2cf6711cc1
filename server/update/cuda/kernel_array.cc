#include "server/update/cuda/kernel_array.h"

#include <algorithm>
#include <cstdint>

#include "common/block_code.h"
#include "common/fatal.h"

namespace optshard {
namespace {

ArrayKind KindOf(BlockCode code) {
  switch (code) {
    case BlockCode::kDynamicSigned:
      return ArrayKind::kDynamicSigned;
    case BlockCode::kDynamicUnsigned:
      return ArrayKind::kDynamicUnsigned;
    case BlockCode::kCompandedAverage:
      return ArrayKind::kCompandedAverage;
    case BlockCode::kCompandedSquare:
      return ArrayKind::kCompandedSquare;
  }
  Fatal("%d is not a block code", static_cast<int>(code));
}

size_t ElementBytes(ArrayKind kind) {
  switch (kind) {
    case ArrayKind::kFloat32:
      return sizeof(float);
    case ArrayKind::kFloat64:
      return sizeof(double);
    case ArrayKind::kFloat16:
    case ArrayKind::kBFloat16:
      return sizeof(uint16_t);
    default:
      return sizeof(uint8_t);
  }
}

}  // namespace

ArrayKind KindOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ArrayKind::kFloat32;
    case DType::kFloat64:
      return ArrayKind::kFloat64;
    case DType::kFloat16:
      return ArrayKind::kFloat16;
    case DType::kBFloat16:
      return ArrayKind::kBFloat16;
  }
  Fatal("%d is not an element type", static_cast<int>(dtype));
}

KernelArray ArrayOf(ConstBuffer buffer) {
  return {const_cast<void*>(buffer.data()), nullptr, KindOf(buffer.dtype())};
}

KernelArray ArrayOf(const SlotArray& slot) {
  if (!slot.is_coded()) return ArrayOf(ConstBuffer(slot.plain()));
  return {slot.coded().codes, slot.coded().scales, KindOf(slot.coded().code)};
}

bool IsAligned(const void* data, size_t element_bytes, int elements, size_t most_bytes) {
  const size_t pack = std::min(element_bytes * elements, most_bytes);
  return reinterpret_cast<uintptr_t>(data) % pack == 0;
}

bool IsAligned(const KernelArray& array, int elements, size_t most_bytes) {
  return array.kind == ArrayKind::kNone ||
         IsAligned(array.values, ElementBytes(array.kind), elements, most_bytes);
}

}  // namespace optshard

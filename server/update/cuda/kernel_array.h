// Arrays as kernels see them, made of what updates have.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_KERNEL_ARRAY_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_KERNEL_ARRAY_H_

#include <cstddef>

#include "common/buffer.h"
#include "common/dtype.h"
#include "server/update/cuda/kernel_arguments.h"
#include "server/update/slot_array.h"

namespace optshard {

ArrayKind KindOf(DType dtype);

// Kernels do not write to what they only read.
KernelArray ArrayOf(ConstBuffer buffer);
KernelArray ArrayOf(const SlotArray& slot);

// Whether so many elements may be loaded at once, in packs of at most `most_bytes`, from the first
// on. Of no array: yes.
bool IsAligned(const KernelArray& array, int elements, size_t most_bytes = 16);
bool IsAligned(const void* data, size_t element_bytes, int elements, size_t most_bytes = 16);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_KERNEL_ARRAY_H_

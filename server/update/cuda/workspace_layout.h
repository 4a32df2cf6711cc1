// Arrays one behind the other in memory that kernels compute in.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_WORKSPACE_LAYOUT_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_WORKSPACE_LAYOUT_H_

#include <cstdint>

#include "common/buffer.h"
#include "common/dtype.h"
#include "common/memory_layout.h"

namespace optshard {

// Does not own the memory. Thread-compatible.
class WorkspaceLayout {
 public:
  // `memory` null: only bytes() counts.
  explicit WorkspaceLayout(void* memory) : begin_(static_cast<char*>(memory)) {}

  // Memory that is aligned to kAlignmentBytes.
  void* Take(int64_t bytes) {
    void* const taken = begin_ == nullptr ? nullptr : begin_ + bytes_;
    bytes_ += Aligned(bytes);
    return taken;
  }
  Buffer Take(DType dtype, int64_t elements) {
    return Buffer(Take(elements * static_cast<int64_t>(SizeOf(dtype))), dtype);
  }

  int64_t bytes() const { return bytes_; }

  // What Take takes.
  static int64_t Aligned(int64_t bytes) {
    return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  }

 private:
  char* const begin_;
  int64_t bytes_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_WORKSPACE_LAYOUT_H_

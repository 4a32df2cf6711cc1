// A bounded pool of memory for contributions that have been received and not yet summed.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_SCRATCH_POOL_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_SCRATCH_POOL_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/types/optional.h"

namespace optshard {

// Thread-compatible.
class ScratchPool {
 public:
  struct Block {
    std::unique_ptr<char[]> data;  // uninitialised
    size_t bytes = 0;              // may be more than asked for
  };

  // All blocks together stay within `limit_bytes`, except that one block may be larger by itself.
  explicit ScratchPool(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Returns a block of at least `bytes`, or nothing while the blocks in use leave no room for it.
  absl::optional<Block> Take(size_t bytes);

  void Return(Block block);

  size_t allocated_bytes() const { return allocated_bytes_; }

 private:
  const size_t limit_bytes_;
  size_t allocated_bytes_ = 0;  // of the free blocks and those in use
  int in_use_ = 0;
  std::vector<Block> free_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_SCRATCH_POOL_H_

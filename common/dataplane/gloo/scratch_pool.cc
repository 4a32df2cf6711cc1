#include "common/dataplane/gloo/scratch_pool.h"

#include <utility>

namespace optshard {

absl::optional<ScratchPool::Block> ScratchPool::Take(size_t bytes) {
  auto best = free_.end();
  for (auto block = free_.begin(); block != free_.end(); ++block) {
    if (block->bytes < bytes) continue;
    if (best == free_.end() || block->bytes < best->bytes) best = block;
  }
  if (best != free_.end()) {
    Block taken = std::move(*best);
    free_.erase(best);
    ++in_use_;
    return taken;
  }
  while (allocated_bytes_ + bytes > limit_bytes_ && !free_.empty()) {
    allocated_bytes_ -= free_.back().bytes;
    free_.pop_back();
  }
  if (allocated_bytes_ + bytes > limit_bytes_ && in_use_ > 0) return absl::nullopt;
  allocated_bytes_ += bytes;
  ++in_use_;
  return Block{std::unique_ptr<char[]>(new char[bytes]), bytes};
}

void ScratchPool::Return(Block block) {
  --in_use_;
  free_.push_back(std::move(block));
}

}  // namespace optshard

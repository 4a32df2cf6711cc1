#include "server/shard/snapshot/state_snapshots.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace optshard {
namespace {

constexpr size_t kAlignment = 64;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t BytesOf(const std::vector<MemoryBlock>& blocks) {
  size_t bytes = 0;
  for (const MemoryBlock& block : blocks) {
    for (const MemoryRange& range : block) bytes += Aligned(range.bytes);
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

StateSnapshot::StateSnapshot(const std::vector<MemoryBlock>* blocks, SnapshotMemory::Piece copies)
    : blocks_(*blocks), copies_(std::move(copies)), states_(blocks->size()) {
  size_t next = 0;
  for (const MemoryBlock& block : blocks_) {
    std::vector<size_t>& places = places_.emplace_back();
    for (const MemoryRange& range : block) {
      places.push_back(next);
      next += Aligned(range.bytes);
    }
  }
}

const char* StateSnapshot::At(int block, int range) const {
  if (state(block) != BlockState::kCopied) return blocks_[block][range].data;
  return copies_.get() + places_[block][range];
}

void StateSnapshot::BeforeWrite(int block) {
  if (state(block) != BlockState::kLive) return;
  BlockState next = BlockState::kLost;
  if (keeps_copies()) {
    for (size_t r = 0; r < blocks_[block].size(); ++r) {
      const MemoryRange& range = blocks_[block][r];
      char* const to = copies_.get() + places_[block][r];
      if (range.bytes > 0) std::memcpy(to, range.data, range.bytes);
    }
    next = BlockState::kCopied;
  }
  // Acquire keeps the writes that follow behind it.
  states_[block].exchange(static_cast<uint32_t>(next), std::memory_order_acq_rel);
}

StateSnapshots::StateSnapshots(std::vector<MemoryBlock> blocks)
    : blocks_(std::move(blocks)), bytes_(BytesOf(blocks_)) {}

void StateSnapshots::BeginWrite(int block, std::atomic<uint64_t>& sequence) {
  absl::MutexLock lock(&mutex_);
  for (const std::shared_ptr<StateSnapshot>& snapshot : open_) snapshot->BeforeWrite(block);
  // Acquire keeps the writes that follow behind it.
  sequence.fetch_add(1, std::memory_order_acq_rel);
}

std::shared_ptr<StateSnapshot> StateSnapshots::Prepare(SnapshotMemory::Piece copies) {
  return std::shared_ptr<StateSnapshot>(new StateSnapshot(&blocks_, std::move(copies)));
}

void StateSnapshots::Open(const std::shared_ptr<StateSnapshot>& snapshot) {
  absl::MutexLock lock(&mutex_);
  const auto first = ended_ ? StateSnapshot::BlockState::kLost : StateSnapshot::BlockState::kLive;
  for (std::atomic<uint32_t>& state : snapshot->states_) {
    state.store(static_cast<uint32_t>(first), std::memory_order_release);
  }
  if (!ended_) open_.push_back(snapshot);
}

void StateSnapshots::Close(const StateSnapshot* snapshot) {
  absl::MutexLock lock(&mutex_);
  open_.erase(std::remove_if(open_.begin(), open_.end(),
                             [&](const auto& each) { return each.get() == snapshot; }),
              open_.end());
}

void StateSnapshots::EndAll() {
  absl::MutexLock lock(&mutex_);
  ended_ = true;
  for (const std::shared_ptr<StateSnapshot>& snapshot : open_) {
    for (std::atomic<uint32_t>& state : snapshot->states_) {
      auto live = static_cast<uint32_t>(StateSnapshot::BlockState::kLive);
      state.compare_exchange_strong(live, static_cast<uint32_t>(StateSnapshot::BlockState::kLost),
                                    std::memory_order_acq_rel);
    }
  }
  open_.clear();
}

}  // namespace optshard

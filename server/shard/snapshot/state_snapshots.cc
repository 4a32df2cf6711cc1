#include "server/shard/snapshot/state_snapshots.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace optshard {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kChunkBytes = 256 << 10;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t BytesOf(const std::vector<MemoryBlock>& blocks) {
  size_t bytes = 0;
  for (const MemoryBlock& block : blocks) {
    for (const MemoryRange& range : block) bytes += Aligned(range.bytes);
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

// One who may be copying, until its end.
class StateSnapshot::Copying {
 public:
  explicit Copying(std::atomic<int>* count) : count_(*count) { count_.fetch_add(1); }
  ~Copying() { count_.fetch_sub(1); }
  Copying(const Copying&) = delete;
  Copying& operator=(const Copying&) = delete;

 private:
  std::atomic<int>& count_;
};

StateSnapshot::StateSnapshot(const std::vector<MemoryBlock>* blocks, SnapshotMemory::Piece copies)
    : blocks_(*blocks), copies_(std::move(copies)), states_(blocks->size()) {
  size_t next = 0;
  for (const MemoryBlock& block : blocks_) {
    std::vector<size_t>& places = places_.emplace_back();
    first_chunk_.push_back(chunks_.size());
    for (const MemoryRange& range : block) {
      places.push_back(next);
      for (size_t begin = 0; begin < range.bytes; begin += kChunkBytes) {
        const size_t bytes = std::min(kChunkBytes, range.bytes - begin);
        chunks_.push_back({range.data + begin, next + begin, bytes});
      }
      next += Aligned(range.bytes);
    }
  }
  first_chunk_.push_back(chunks_.size());
  chunk_states_ = std::vector<std::atomic<ChunkState>>(chunks_.size());
}

const char* StateSnapshot::At(int block, int range) const {
  if (state(block) != BlockState::kCopied) return blocks_[block][range].data;
  return copies_.get() + places_[block][range];
}

void StateSnapshot::Open(BlockState first) {
  // What is lost is somebody else's.
  stopped_.store(first == BlockState::kLost);
  for (std::atomic<ChunkState>& chunk : chunk_states_) {
    chunk.store(ChunkState::kLive, std::memory_order_relaxed);
  }
  for (std::atomic<uint32_t>& state : states_) {
    state.store(static_cast<uint32_t>(first), std::memory_order_release);
  }
}

bool StateSnapshot::TryCopy(size_t chunk) {
  ChunkState expected = ChunkState::kLive;
  std::atomic<ChunkState>& state = chunk_states_[chunk];
  // Before the look at stopped_: whoever stops waits for those who have not seen it.
  const Copying copying(&copying_);
  if (stopped_.load()) return false;
  if (!state.compare_exchange_strong(expected, ChunkState::kBusy, std::memory_order_acquire)) {
    return false;
  }
  const Chunk& copied = chunks_[chunk];
  std::memcpy(copies_.get() + copied.to, copied.from, copied.bytes);
  // Releases the reads, too: they come before a write that follows AwaitCopy.
  state.store(ChunkState::kDone, std::memory_order_release);
  return true;
}

void StateSnapshot::AwaitCopy(size_t chunk) const {
  while (chunk_states_[chunk].load(std::memory_order_acquire) == ChunkState::kBusy) {
    std::this_thread::yield();
  }
}

void StateSnapshot::BeforeWrite(int block) {
  if (state(block) != BlockState::kLive) return;
  BlockState next = BlockState::kLost;
  if (keeps_copies()) {
    for (size_t chunk = first_chunk_[block]; chunk < first_chunk_[block + 1]; ++chunk) {
      if (!TryCopy(chunk)) AwaitCopy(chunk);
    }
    next = BlockState::kCopied;
  }
  // Acquire keeps the writes that follow behind it.
  states_[block].exchange(static_cast<uint32_t>(next), std::memory_order_acq_rel);
}

void StateSnapshot::CopyAhead() {
  if (!keeps_copies()) return;
  for (size_t block = 0; block < blocks_.size(); ++block) {
    // A chunk of another's is a writer's, who goes on to the block's end; or nothing is to be
    // copied any more.
    bool all = true;
    for (size_t chunk = first_chunk_[block]; all && chunk < first_chunk_[block + 1]; ++chunk) {
      all = TryCopy(chunk);
    }
    auto live = static_cast<uint32_t>(BlockState::kLive);
    if (all) {
      states_[block].compare_exchange_strong(live, static_cast<uint32_t>(BlockState::kCopied),
                                             std::memory_order_acq_rel);
    }
  }
}

void StateSnapshot::StopCopying() {
  stopped_.store(true);
  while (copying_.load() > 0) std::this_thread::yield();
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
  snapshot->Open(first);
  if (!ended_) open_.push_back(snapshot);
}

void StateSnapshots::Close(const StateSnapshot* snapshot) {
  absl::MutexLock lock(&mutex_);
  const auto found = std::find_if(open_.begin(), open_.end(),
                                  [&](const auto& each) { return each.get() == snapshot; });
  if (found == open_.end()) return;
  (*found)->StopCopying();
  open_.erase(found);
}

void StateSnapshots::EndAll() {
  absl::MutexLock lock(&mutex_);
  ended_ = true;
  for (const std::shared_ptr<StateSnapshot>& snapshot : open_) {
    snapshot->StopCopying();
    for (std::atomic<uint32_t>& state : snapshot->states_) {
      auto live = static_cast<uint32_t>(StateSnapshot::BlockState::kLive);
      state.compare_exchange_strong(live, static_cast<uint32_t>(StateSnapshot::BlockState::kLost),
                                    std::memory_order_acq_rel);
    }
  }
  open_.clear();
}

}  // namespace optshard

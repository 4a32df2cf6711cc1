#include "server/shard/snapshot/state_snapshots.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "common/streaming_copy.h"

namespace optshard {
namespace {

constexpr size_t kAlignment = 64;
// With what else an update reads and writes beside it, it stays in a core's cache until it is
// updated.
constexpr size_t kChunkBytes = 128 << 10;
constexpr absl::Duration kPause = absl::Microseconds(50);

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t BytesOf(const std::vector<MemoryBlock>& blocks) {
  size_t bytes = 0;
  for (const MemoryBlock& block : blocks) {
    for (const MemoryRange& range : block) bytes += Aligned(range.bytes);
  }
  return static_cast<int64_t>(bytes);
}

// One behind the other.
CopyPlaces PlacesOf(const std::vector<MemoryBlock>& blocks) {
  CopyPlaces places;
  size_t next = 0;
  for (const MemoryBlock& block : blocks) {
    places.emplace_back();
    for (const MemoryRange& range : block) {
      places.back().push_back(next);
      next += Aligned(range.bytes);
    }
  }
  return places;
}

// In copies of the memory, one behind the other.
CopyPlaces PlacesIn(const std::vector<MemoryRange>& memory,
                    const std::vector<MemoryBlock>& blocks) {
  CopyPlaces places;
  for (const MemoryBlock& block : blocks) {
    places.emplace_back();
    for (const MemoryRange& range : block) {
      size_t copy = 0;
      for (const MemoryRange& each : memory) {
        if (range.data >= each.data && range.data < each.data + each.bytes) {
          copy += range.data - each.data;
          break;
        }
        copy += Aligned(each.bytes);
      }
      places.back().push_back(copy);
    }
  }
  return places;
}

// Not soon read again, but by those who write it somewhere.
void Copy(const char* from, size_t bytes, char* to) {
  constexpr size_t kWorthStreaming = 16 << 10;
  if (bytes < kWorthStreaming || !IsStreamable(to)) {
    std::memcpy(to, from, bytes);
    return;
  }
  Stream(to, from, bytes);
  FenceStreams();
}

bool IsBefore(const MemoryRange& left, const MemoryRange& right) { return left.data < right.data; }

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

StateSnapshot::StateSnapshot(std::shared_ptr<const std::vector<MemoryBlock>> blocks,
                             CopyPlaces places, SnapshotMemory::Piece copies, bool is_of_parameters,
                             bool is_on_device, std::shared_ptr<SnapshotMemory> later,
                             std::shared_ptr<const RightOfWay> steps)
    : blocks_(std::move(blocks)),
      places_(std::move(places)),
      copies_(std::move(copies)),
      is_of_parameters_(is_of_parameters),
      is_on_device_(is_on_device),
      later_(std::move(later)),
      steps_(std::move(steps)),
      states_(blocks_->size()) {
  for (size_t b = 0; b < blocks_->size(); ++b) {
    first_chunk_.push_back(chunks_.size());
    for (size_t r = 0; r < (*blocks_)[b].size(); ++r) {
      const MemoryRange& range = (*blocks_)[b][r];
      for (size_t begin = 0; begin < range.bytes; begin += kChunkBytes) {
        const size_t bytes = std::min(kChunkBytes, range.bytes - begin);
        chunks_.push_back({range.data + begin, places_[b][r] + begin, bytes});
      }
    }
    std::sort(chunks_.begin() + static_cast<ptrdiff_t>(first_chunk_[b]), chunks_.end(),
              [](const Chunk& left, const Chunk& right) { return left.from < right.from; });
  }
  first_chunk_.push_back(chunks_.size());
  chunk_states_ = std::vector<std::atomic<ChunkState>>(chunks_.size());
}

StateSnapshot::BlockState StateSnapshot::state(int block) const {
  while (true) {
    const uint32_t state = states_[block].fetch_add(0, std::memory_order_acq_rel);
    if (device_copy_ != nullptr && !device_copy_->IsThere()) return BlockState::kLost;
    if (state != kInPieces) return static_cast<BlockState>(state);
    absl::SleepFor(kPause);
  }
}

const char* StateSnapshot::At(int block, int range) const {
  const bool is_live = !is_on_device_ && state(block) != BlockState::kCopied;
  if (is_live) return (*blocks_)[block][range].data;
  return copies_.get() + places_[block][range];
}

void StateSnapshot::Open(BlockState first) {
  // What is lost is somebody else's, and what is copied already is.
  stopped_.store(first != BlockState::kLive);
  for (std::atomic<ChunkState>& chunk : chunk_states_) {
    chunk.store(ChunkState::kLive, std::memory_order_relaxed);
  }
  for (std::atomic<uint32_t>& state : states_) {
    state.store(static_cast<uint32_t>(first), std::memory_order_release);
  }
}

absl::Status StateSnapshot::BeginCopy(absl::Span<const MemoryRange> memory, DeviceAccess& device,
                                      uint64_t version) {
  std::vector<DeviceAccess::Range> ranges;
  size_t next = 0;
  for (const MemoryRange& each : memory) {
    ranges.push_back({each.data, next, each.bytes});
    next += Aligned(each.bytes);
  }
  absl::StatusOr<std::shared_ptr<const DeviceCopy>> copy =
      device.BeginCopy(version, ranges, copies_);
  if (!copy.ok()) return copy.status();
  device_copy_ = *std::move(copy);
  return absl::OkStatus();
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
  Copy(copied.from, copied.bytes, copies_.get() + copied.to);
  // Releases the reads, too: they come before a write that follows AwaitCopy.
  state.store(ChunkState::kDone, std::memory_order_release);
  return true;
}

bool StateSnapshot::AwaitCopy(size_t chunk) const {
  while (true) {
    const ChunkState state = chunk_states_[chunk].load(std::memory_order_acquire);
    if (state != ChunkState::kBusy) return state == ChunkState::kDone;
    std::this_thread::yield();
  }
}

void StateSnapshot::BeforeWrite(int block) {
  if (state(block) != BlockState::kLive) return;
  BlockState next = BlockState::kLost;
  if (keeps_copies()) {
    for (size_t chunk = first_chunk_[block]; chunk < first_chunk_[block + 1]; ++chunk) Keep(chunk);
    next = BlockState::kCopied;
  }
  // Acquire keeps the writes that follow behind it.
  states_[block].exchange(static_cast<uint32_t>(next), std::memory_order_acq_rel);
}

void StateSnapshot::Keep(size_t chunk) {
  if (!TryCopy(chunk)) static_cast<void>(AwaitCopy(chunk));
}

bool StateSnapshot::BeginPieces(int block, absl::Span<const MemoryRange> announced) {
  if (!keeps_copies()) {
    BeforeWrite(block);
    return false;
  }
  auto live = static_cast<uint32_t>(BlockState::kLive);
  // As in BeforeWrite.
  if (!states_[block].compare_exchange_strong(live, kInPieces, std::memory_order_acq_rel)) {
    return false;
  }
  auto range = announced.begin();
  for (size_t chunk = first_chunk_[block]; chunk < first_chunk_[block + 1]; ++chunk) {
    const char* reached = chunks_[chunk].from;
    const char* const end = reached + chunks_[chunk].bytes;
    while (range != announced.end() && range->data + range->bytes <= reached) ++range;
    for (auto next = range; next != announced.end() && next->data <= reached; ++next) {
      reached = std::max(reached, next->data + next->bytes);
    }
    if (reached < end) Keep(chunk);
  }
  return true;
}

void StateSnapshot::BeforePiece(int block, const char* data, size_t bytes) {
  const auto first = chunks_.begin() + static_cast<ptrdiff_t>(first_chunk_[block]);
  const auto last = chunks_.begin() + static_cast<ptrdiff_t>(first_chunk_[block + 1]);
  auto chunk = std::partition_point(
      first, last, [&](const Chunk& each) { return each.from + each.bytes <= data; });
  for (; chunk != last && chunk->from < data + bytes; ++chunk) Keep(chunk - chunks_.begin());
}

void StateSnapshot::EndPieces(int block) {
  // Of pieces that were not written after all.
  for (size_t chunk = first_chunk_[block]; chunk < first_chunk_[block + 1]; ++chunk) Keep(chunk);
  uint32_t in_pieces = kInPieces;
  states_[block].compare_exchange_strong(in_pieces, static_cast<uint32_t>(BlockState::kCopied),
                                         std::memory_order_acq_rel);
}

void BlockPieces::Before(const void* data, size_t bytes) const {
  for (StateSnapshot* const snapshot : snapshots_) {
    snapshot->BeforePiece(block_, static_cast<const char*>(data), bytes);
  }
}

void StateSnapshot::CopyAhead() {
  if (!keeps_copies()) return;
  GivingWay giving_way(steps_);
  for (size_t block = 0; block < blocks_->size(); ++block) {
    // A chunk of another's is a writer's, who goes on to the block's end; or nothing is to be
    // copied any more.
    bool all = true;
    for (size_t chunk = first_chunk_[block]; all && chunk < first_chunk_[block + 1]; ++chunk) {
      giving_way.Wait();
      all = TryCopy(chunk);
    }
    auto live = static_cast<uint32_t>(BlockState::kLive);
    if (all) {
      states_[block].compare_exchange_strong(live, static_cast<uint32_t>(BlockState::kCopied),
                                             std::memory_order_acq_rel);
    }
  }
}

bool StateSnapshot::CopyAll() {
  bool is_kept = true;
  GivingWay giving_way(steps_);
  for (size_t block = 0; block < blocks_->size(); ++block) {
    bool all = true;
    for (size_t chunk = first_chunk_[block]; chunk < first_chunk_[block + 1]; ++chunk) {
      giving_way.Wait();
      all = (TryCopy(chunk) || AwaitCopy(chunk)) && all;
    }
    auto live = static_cast<uint32_t>(BlockState::kLive);
    if (all) {
      states_[block].compare_exchange_strong(live, static_cast<uint32_t>(BlockState::kCopied),
                                             std::memory_order_acq_rel);
    }
    is_kept = is_kept && state(static_cast<int>(block)) == BlockState::kCopied;
  }
  return is_kept;
}

void StateSnapshot::StopCopying() {
  stopped_.store(true);
  while (copying_.load() > 0) std::this_thread::yield();
}

StateSnapshots::StateSnapshots(std::vector<MemoryBlock> blocks, std::vector<MemoryRange> on_device)
    : blocks_(std::make_shared<const std::vector<MemoryBlock>>(std::move(blocks))),
      on_device_(std::move(on_device)),
      bytes_(on_device_.empty() ? BytesOf(*blocks_) : BytesOf({on_device_})) {}

void StateSnapshots::BeginWrite(int block, std::atomic<uint64_t>& sequence) {
  absl::MutexLock lock(&mutex_);
  for (const std::shared_ptr<StateSnapshot>& snapshot : open_) snapshot->BeforeWrite(block);
  // Acquire keeps the writes that follow behind it.
  sequence.fetch_add(1, std::memory_order_acq_rel);
}

void StateSnapshots::Write(int block, std::atomic<uint64_t>& sequence,
                           absl::FunctionRef<std::vector<MemoryRange>()> announce,
                           absl::FunctionRef<void(const BlockPieces*)> write) {
  absl::ReleasableMutexLock lock(&mutex_);
  BlockPieces pieces(block);
  std::vector<MemoryRange> announced;
  if (!open_.empty()) announced = announce();
  std::sort(announced.begin(), announced.end(), IsBefore);
  for (const std::shared_ptr<StateSnapshot>& snapshot : open_) {
    if (snapshot->BeginPieces(block, announced)) pieces.snapshots_.push_back(snapshot.get());
  }
  // As in BeginWrite.
  sequence.fetch_add(1, std::memory_order_acq_rel);
  if (pieces.snapshots_.empty()) {
    lock.Release();
    return write(nullptr);
  }
  write(&pieces);
  for (StateSnapshot* const snapshot : pieces.snapshots_) snapshot->EndPieces(block);
}

std::shared_ptr<StateSnapshot> StateSnapshots::Prepare(SnapshotMemory::Piece copies,
                                                       std::shared_ptr<SnapshotMemory> later) {
  const bool is_on_device = !on_device_.empty();
  return std::shared_ptr<StateSnapshot>(
      new StateSnapshot(blocks_, is_on_device ? PlacesIn(on_device_, *blocks_) : PlacesOf(*blocks_),
                        std::move(copies), false, is_on_device, std::move(later), right_of_way_));
}

std::shared_ptr<StateSnapshot> StateSnapshots::PrepareParameters(
    std::vector<MemoryBlock> blocks, CopyPlaces places, SnapshotMemory::Piece copies) const {
  return std::shared_ptr<StateSnapshot>(
      new StateSnapshot(std::make_shared<const std::vector<MemoryBlock>>(std::move(blocks)),
                        std::move(places), std::move(copies), true, false, nullptr, right_of_way_));
}

void StateSnapshots::Open(const std::shared_ptr<StateSnapshot>& snapshot) {
  absl::MutexLock lock(&mutex_);
  const auto first = ended_ ? StateSnapshot::BlockState::kLost : StateSnapshot::BlockState::kLive;
  snapshot->Open(first);
  if (!ended_) open_.push_back(snapshot);
}

absl::Status StateSnapshots::FindMemory(const std::shared_ptr<StateSnapshot>& snapshot,
                                        uint64_t version) {
  if (snapshot->later_ == nullptr) return absl::OkStatus();
  {
    absl::MutexLock lock(&mutex_);
    snapshot->shared_ = version == copied_version_ ? copies_.lock() : nullptr;
  }
  if (snapshot->shared_ != nullptr || snapshot->keeps_copies()) return absl::OkStatus();
  absl::StatusOr<SnapshotMemory::Piece> taken = snapshot->later_->Take(bytes_);
  if (!taken.ok()) return taken.status();
  snapshot->copies_ = *std::move(taken);
  return absl::OkStatus();
}

absl::Status StateSnapshots::OpenOnDevice(const std::shared_ptr<StateSnapshot>& snapshot,
                                          DeviceAccess& device, uint64_t version) {
  absl::MutexLock lock(&mutex_);
  if (ended_) return absl::AbortedError("others keep the state from now on");
  if (snapshot->shared_ != nullptr) {
    if (device.version() != version) return absl::AbortedError("a step has begun");
    snapshot->copies_ = snapshot->shared_->memory();
    snapshot->device_copy_ = std::move(snapshot->shared_);
  } else if (snapshot->keeps_copies()) {
    absl::Status begun = snapshot->BeginCopy(on_device_, device, version);
    if (!begun.ok()) return begun;
    if (copied_version_ != version || copies_.expired()) {
      copies_ = snapshot->device_copy_;
      copied_version_ = version;
    }
  } else {
    snapshot->Open(StateSnapshot::BlockState::kLost);
    return absl::OkStatus();
  }
  snapshot->Open(StateSnapshot::BlockState::kCopied);
  return absl::OkStatus();
}

void StateSnapshots::BeginParameterWrites() {
  absl::MutexLock lock(&mutex_);
  for (const std::shared_ptr<StateSnapshot>& snapshot : open_) {
    if (!snapshot->is_of_parameters_) continue;
    const auto blocks = static_cast<int>(snapshot->states_.size());
    for (int block = 0; block < blocks; ++block) snapshot->BeforeWrite(block);
  }
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

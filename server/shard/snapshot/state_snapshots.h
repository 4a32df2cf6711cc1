// Keeps the state of one step while later steps go on writing: what is not copied yet is copied
// before it is written.
#ifndef OPTSHARD_SERVER_SHARD_SNAPSHOT_STATE_SNAPSHOTS_H_
#define OPTSHARD_SERVER_SHARD_SNAPSHOT_STATE_SNAPSHOTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/shard/snapshot/right_of_way.h"
#include "server/shard/snapshot/snapshot_memory.h"
#include "server/shard/state/device_access.h"

namespace optshard {

struct MemoryRange {
  const char* data = nullptr;
  size_t bytes = 0;
};

// What is written as one, such as all slots of a bucket.
using MemoryBlock = std::vector<MemoryRange>;

// By block and range: where in a snapshot's memory the copy goes.
using CopyPlaces = std::vector<std::vector<size_t>>;

// The state at one moment. Where it is on a device, all of it is copied when the snapshot is
// opened, by the device, if there is memory for that; otherwise it is lost. In memory of the host a
// block is *live* until it is first written: its memory is the snapshot's. Before that write it is
// copied, where the snapshot has memory for copies; otherwise it is lost. While it is copied and
// written piece by piece, who asks for its state waits.
//
// Any thread may read, and does not make the writer wait: look at state(block) and read from At();
// if the block was live then and is not afterwards, throw away what was read, and read again.
class StateSnapshot {
 public:
  enum class BlockState : uint32_t { kLive, kCopied, kLost };

  // Also orders reads of At() that came before it. Waits for a device that copies it.
  BlockState state(int block) const;
  // Where a range of the block lies: in live memory, or in the copy. Valid as long as the snapshot
  // and the live memory.
  const char* At(int block, int range) const;

  bool keeps_copies() const { return copies_ != nullptr; }

  // Copies what is live, until nothing is or the snapshot is closed, so that no step has to. Gives
  // way to steps, which copy what they write themselves; one that is in its way waits for 128 KiB
  // at most. Does nothing without memory for copies. Any thread; the snapshot is open.
  void CopyAhead();

  // Likewise, and waits for what others copy. Whether all of it is copied: not where it is closed,
  // or somebody else has got the memory. It has memory for copies.
  bool CopyAll();

  // Of the steps that write the blocks.
  const std::shared_ptr<const RightOfWay>& steps() const { return steps_; }

 private:
  friend class BlockPieces;
  friend class StateSnapshots;

  // What is copied at once.
  struct Chunk {
    const char* from = nullptr;
    size_t to = 0;  // in copies_
    size_t bytes = 0;
  };
  enum class ChunkState : uint8_t { kLive, kBusy, kDone };
  class Copying;
  // Beside the states of BlockState.
  static constexpr uint32_t kInPieces = 3;

  StateSnapshot(std::shared_ptr<const std::vector<MemoryBlock>> blocks, CopyPlaces places,
                SnapshotMemory::Piece copies, bool is_of_parameters, bool is_on_device,
                std::shared_ptr<SnapshotMemory> later, std::shared_ptr<const RightOfWay> steps);

  void Open(BlockState first);
  // As DeviceAccess::BeginCopy.
  absl::Status BeginCopy(absl::Span<const MemoryRange> memory, DeviceAccess& device,
                         uint64_t version);
  void BeforeWrite(int block);
  // Whether the block is kept piece by piece from now on. What is not in `announced`, which is in
  // the order of memory, is copied at once.
  bool BeginPieces(int block, absl::Span<const MemoryRange> announced);
  void BeforePiece(int block, const char* data, size_t bytes);
  void EndPieces(int block);
  void Keep(size_t chunk);  // now, or waits for who does
  // Nobody copies, and nobody will.
  void StopCopying();
  // False where somebody else has copied it, or does, or nobody is to.
  bool TryCopy(size_t chunk);
  // Whether it is copied now: not where nobody did or does.
  bool AwaitCopy(size_t chunk) const;

  const std::shared_ptr<const std::vector<MemoryBlock>> blocks_;
  const CopyPlaces places_;  // in copies_
  SnapshotMemory::Piece copies_;
  const bool is_of_parameters_;
  const bool is_on_device_;
  // Null: copies_ is all that it gets.
  const std::shared_ptr<SnapshotMemory> later_;
  std::shared_ptr<const DeviceCopy> shared_;  // until it is open
  const std::shared_ptr<const RightOfWay> steps_;
  mutable std::vector<std::atomic<uint32_t>> states_;
  std::vector<Chunk> chunks_;        // of all blocks; those of one in the order of memory
  std::vector<size_t> first_chunk_;  // by block; one more is the end
  std::vector<std::atomic<ChunkState>> chunk_states_;
  std::shared_ptr<const DeviceCopy> device_copy_;
  std::atomic<bool> stopped_{false};
  std::atomic<int> copying_{0};  // who may be
};

// A block while it is written piece by piece.
class BlockPieces {
 public:
  // Before a range is written that was announced, or a part of one. Any thread.
  void Before(const void* data, size_t bytes) const;

 private:
  friend class StateSnapshots;
  explicit BlockPieces(int block) : block_(block) {}

  const int block_;
  std::vector<StateSnapshot*> snapshots_;  // that keep it
};

// The open snapshots of one store. Thread-safe: one thread writes the blocks, any open and close.
class StateSnapshots {
 public:
  // The memory of the blocks outlives this and all its snapshots. Where it is on a device, all of
  // it is in `on_device`, which is copied as a whole.
  explicit StateSnapshots(std::vector<MemoryBlock> blocks, std::vector<MemoryRange> on_device = {});

  // Before the block is written. The sequence, which is even, becomes odd: whoever opens a snapshot
  // afterwards sees that.
  void BeginWrite(int block, std::atomic<uint64_t>& sequence);

  // Likewise, and calls `write` to write it. Where snapshots keep it, that says before each range
  // which it writes that it does: what is copied just before it is written is read from memory
  // once. All that it will say was announced: the rest is copied at once. No snapshot is opened or
  // closed meanwhile. Where none keeps it, it gets null, and nothing is to be announced.
  void Write(int block, std::atomic<uint64_t>& sequence,
             absl::FunctionRef<std::vector<MemoryRange>()> announce,
             absl::FunctionRef<void(const BlockPieces*)> write);

  // A snapshot that is not open yet. With `copies`, which is null or has the bytes of all blocks,
  // it keeps what is written later. On a device, one with `later` shares the copies of another one
  // that is of the same version. Otherwise it uses its own, or, without, takes some of `later`, of
  // which something has been taken before: so that takes no time.
  std::shared_ptr<StateSnapshot> Prepare(SnapshotMemory::Piece copies,
                                         std::shared_ptr<SnapshotMemory> later = nullptr);

  // Likewise of parameters, which are written with the blocks, and by others
  // (BeginParameterWrites): `blocks` has what of them is written with each block. `copies` has room
  // at `places`.
  std::shared_ptr<StateSnapshot> PrepareParameters(std::vector<MemoryBlock> blocks,
                                                   CopyPlaces places,
                                                   SnapshotMemory::Piece copies) const;

  // From now on the snapshot, which nobody reads yet, keeps what is in the blocks. The caller then
  // makes sure that nothing was being written, or closes it again.
  void Open(const std::shared_ptr<StateSnapshot>& snapshot);

  // Likewise of blocks on a device: what they are behind the updates of the version. First
  // FindMemory: RESOURCE_EXHAUSTED where others have it. Then OpenOnDevice: ABORTED where it is too
  // late for that, or nobody keeps them any more; the device's errors.
  absl::Status FindMemory(const std::shared_ptr<StateSnapshot>& snapshot, uint64_t version);
  absl::Status OpenOnDevice(const std::shared_ptr<StateSnapshot>& snapshot, DeviceAccess& device,
                            uint64_t version);

  // Before all parameters are replaced.
  void BeginParameterWrites();

  // Nothing is copied for it any more.
  void Close(const StateSnapshot* snapshot);

  // Somebody else writes to the memory from now on: blocks that are live are lost, also those of
  // snapshots that are opened later.
  void EndAll();

  int64_t bytes() const { return bytes_; }  // of what a snapshot copies

  // A step takes it while it is applied.
  RightOfWay& right_of_way() { return *right_of_way_; }

 private:
  const std::shared_ptr<const std::vector<MemoryBlock>> blocks_;
  const std::vector<MemoryRange> on_device_;
  const int64_t bytes_;
  const std::shared_ptr<RightOfWay> right_of_way_ = std::make_shared<RightOfWay>();
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<StateSnapshot>> open_ ABSL_GUARDED_BY(mutex_);
  // Of a version: who shares them keeps them.
  std::weak_ptr<const DeviceCopy> copies_ ABSL_GUARDED_BY(mutex_);
  uint64_t copied_version_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SNAPSHOT_STATE_SNAPSHOTS_H_

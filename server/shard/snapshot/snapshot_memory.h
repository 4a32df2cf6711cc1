// The memory for copies that the snapshots of a rank share: taken once, and kept for the next one.
#ifndef OPTSHARD_SERVER_SHARD_SNAPSHOT_SNAPSHOT_MEMORY_H_
#define OPTSHARD_SERVER_SHARD_SNAPSHOT_SNAPSHOT_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/device_api.h"
#include "common/ids.h"
#include "common/link/memory_budget.h"

namespace optshard {

// Thread-safe.
class SnapshotMemory : public std::enable_shared_from_this<SnapshotMemory> {
 public:
  struct Options {
    int64_t bytes = 0;  // at most
    // Whether all of it is taken and touched by Create, so that no snapshot waits for the system.
    // Otherwise by the first snapshots.
    bool at_start = false;
    Rank rank = 0;                                      // for messages
    MemoryBudget* budget = &MemoryBudget::Unlimited();  // which it is taken from; outlives it
    // Which copies to it (DeviceAccess::BeginCopy): the memory is pinned. Null: the host does.
    std::shared_ptr<DeviceApi> device = nullptr;
  };

  // What a piece takes of it.
  static int64_t RoundedUp(int64_t bytes);

  // Keeps the memory. It goes back when the last of its copies is gone.
  using Piece = std::shared_ptr<char>;

  ~SnapshotMemory();

  // RESOURCE_EXHAUSTED, and the device's errors.
  static absl::StatusOr<std::shared_ptr<SnapshotMemory>> Create(const Options& options);

  // Pages that have been touched, aligned to them; null for 0 bytes. RESOURCE_EXHAUSTED, with what
  // is needed, what there may be and what of it is used; the device's errors.
  absl::StatusOr<Piece> Take(int64_t bytes);

  int64_t bytes() const { return options_.bytes; }
  int64_t used_bytes() const;

 private:
  explicit SnapshotMemory(const Options& options) : options_(options) {}
  std::string Name() const;  // for messages
  absl::StatusOr<std::shared_ptr<void>> Allocate() const;
  absl::Status Map() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t Used() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void GiveBack(int64_t offset);

  const Options options_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<void> memory_ ABSL_GUARDED_BY(mutex_);
  int64_t touched_ ABSL_GUARDED_BY(mutex_) = 0;              // whole pages from its beginning
  std::map<int64_t, int64_t> used_ ABSL_GUARDED_BY(mutex_);  // bytes of pieces, by offset
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SNAPSHOT_SNAPSHOT_MEMORY_H_

// Refuses memory that is not available before anybody allocates it. An allocation beyond the
// cgroup's limit would get one of its processes killed.
#ifndef OPTSHARD_COMMON_LINK_MEMORY_BUDGET_H_
#define OPTSHARD_COMMON_LINK_MEMORY_BUDGET_H_

#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "common/link/memory_headroom.h"

namespace optshard {

// Thread-safe.
class MemoryBudget {
 public:
  // `limit_bytes` bounds the sum of all reservations. Without it there is no such bound.
  explicit MemoryBudget(absl::optional<int64_t> limit_bytes = absl::nullopt,
                        std::function<absl::optional<int64_t>()> headroom = MemoryHeadroom);

  // RESOURCE_EXHAUSTED says what is needed and what for, the limit, how much of it is taken, and
  // what to do; nothing is reserved then. The headroom is read at the time of the call. Memory that
  // others have reserved but not touched yet still counts as available.
  absl::Status Reserve(int64_t bytes, absl::string_view what);
  void Release(int64_t bytes);
  // Reserves what an earlier process has allocated already. Never refused.
  void Adopt(int64_t bytes);

  int64_t reserved_bytes() const;

  // Has no limit except the headroom. Never destroyed.
  static MemoryBudget& Unlimited();

 private:
  const absl::optional<int64_t> limit_bytes_;
  const std::function<absl::optional<int64_t>()> headroom_;
  mutable absl::Mutex mutex_;
  int64_t reserved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_MEMORY_BUDGET_H_

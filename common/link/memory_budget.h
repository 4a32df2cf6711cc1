// Refuses memory that is not there before anybody takes it: an allocation that goes beyond the
// cgroup's limit would get some process of it killed.
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
  // `limit_bytes`: of all that is reserved at a time; none where nothing is given.
  explicit MemoryBudget(absl::optional<int64_t> limit_bytes = absl::nullopt,
                        std::function<absl::optional<int64_t>()> headroom = MemoryHeadroom);

  // RESOURCE_EXHAUSTED with what is needed, what for, the limit and what is taken of it already,
  // and what to do; then nothing is reserved. The headroom is that of the call: what others have
  // reserved and not yet touched is not taken off.
  absl::Status Reserve(int64_t bytes, absl::string_view what);
  void Release(int64_t bytes);
  // Reserves what an earlier process has taken already: never refused.
  void Adopt(int64_t bytes);

  int64_t reserved_bytes() const;

  // No limit but the headroom's. Lives for ever.
  static MemoryBudget& Unlimited();

 private:
  const absl::optional<int64_t> limit_bytes_;
  const std::function<absl::optional<int64_t>()> headroom_;
  mutable absl::Mutex mutex_;
  int64_t reserved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_MEMORY_BUDGET_H_

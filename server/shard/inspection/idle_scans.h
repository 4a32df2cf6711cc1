// Goes through the values of slots where nobody else wants the CPU.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_IDLE_SCANS_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_IDLE_SCANS_H_

#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "server/shard/inspection/slot_scan.h"

namespace optshard {

// For one call at a time; the others wait. The thread that scans gets the CPU where no other thread
// wants it, and otherwise for about 0.3 % of the time, so that no call waits for the thread. Finds
// a view for each piece of work anew: an owner that goes away waits for one piece. Thread-safe.
class IdleScans {
 public:
  // `views` outlives it.
  explicit IdleScans(ShardViewRegistry* views) : views_(views) {}
  ~IdleScans();  // waits for the piece that is being scanned
  IdleScans(const IdleScans&) = delete;
  IdleScans& operator=(const IdleScans&) = delete;

  // The results of the ranges, in their order: of as many as were gone through until `end`, on
  // Clock::Monotonic. Errors as ScanSlot and ShardViewRegistry::Find; RESOURCE_EXHAUSTED where too
  // many calls wait already, or there is no thread; CANCELLED once `gone` says so.
  absl::StatusOr<std::vector<SlotScan>> Scan(const ShardViewRegistry::Selector& selector,
                                             const std::vector<SlotScanRange>& ranges,
                                             absl::Time end, absl::FunctionRef<bool()> gone);

 private:
  struct Work;

  // Waits for the call's turn. False: the time was over before.
  absl::StatusOr<bool> WaitForTurn(absl::Time end, absl::FunctionRef<bool()> gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the thread.
  void Run(Work& work);
  absl::StatusOr<SlotScan> ScanRange(Work& work, const SlotScanRange& range);

  ShardViewRegistry* const views_;
  absl::Mutex mutex_;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  bool scanning_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);  // the last one
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_IDLE_SCANS_H_

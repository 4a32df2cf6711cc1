#include "server/shard/inspection/idle_scans.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "server/shard/inspection/idle_thread.h"

namespace optshard {
namespace {

constexpr int kMostCalls = 64;  // each has a thread of its caller's
constexpr absl::Duration kPoll = absl::Milliseconds(50);
// How long a piece of values waits for the end of a step, which needs the memory's bandwidth.
constexpr int kMostPauses = 20;
constexpr absl::Duration kPause = absl::Milliseconds(1);

absl::Duration UntilPoll(absl::Time end) {
  return std::min(kPoll, std::max(end - Clock::Monotonic().Now(), absl::ZeroDuration()));
}

}  // namespace

// Of one call. The thread may still look at it when the call has ended.
struct IdleScans::Work {
  ShardViewRegistry::Selector selector;
  std::vector<SlotScanRange> ranges;

  absl::Mutex mutex;
  std::vector<SlotScan> done ABSL_GUARDED_BY(mutex);
  absl::Status status ABSL_GUARDED_BY(mutex);
  bool ended ABSL_GUARDED_BY(mutex) = false;
  bool unwanted ABSL_GUARDED_BY(mutex) = false;  // the call has ended
};

IdleScans::~IdleScans() {
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

absl::StatusOr<std::vector<SlotScan>> IdleScans::Scan(const ShardViewRegistry::Selector& selector,
                                                      const std::vector<SlotScanRange>& ranges,
                                                      absl::Time end,
                                                      absl::FunctionRef<bool()> gone) {
  const auto work = std::make_shared<Work>();
  work->selector = selector;
  work->ranges = ranges;
  {
    absl::MutexLock lock(&mutex_);
    if (waiting_ >= kMostCalls) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "%d calls look into slots of this process already; ask again later", waiting_));
    }
    ++waiting_;
    const absl::StatusOr<bool> has_turn = WaitForTurn(end, gone);
    --waiting_;
    if (!has_turn.ok()) return has_turn.status();
    if (!*has_turn) return std::vector<SlotScan>();
    // It has nothing left to do but to end, for which it may need long where others use the CPUs.
    const auto former = std::make_shared<std::thread>(std::move(thread_));
    absl::StatusOr<std::thread> thread = StartIdleThread([this, work, former] {
      if (former->joinable()) former->join();
      Run(*work);
    });
    if (!thread.ok()) {
      thread_ = std::move(*former);
      return thread.status();
    }
    thread_ = *std::move(thread);
    scanning_ = true;
  }
  absl::MutexLock lock(&work->mutex);
  bool is_gone = false;
  while (!work->ended && !is_gone && Clock::Monotonic().Now() < end) {
    work->mutex.AwaitWithTimeout(absl::Condition(&work->ended), UntilPoll(end));
    is_gone = gone();
  }
  work->unwanted = true;
  if (is_gone) return absl::CancelledError("the client has gone");
  if (!work->status.ok()) return work->status;
  return std::move(work->done);
}

absl::StatusOr<bool> IdleScans::WaitForTurn(absl::Time end, absl::FunctionRef<bool()> gone) {
  while (!mutex_.AwaitWithTimeout(absl::Condition(
                                      +[](bool* scanning) { return !*scanning; }, &scanning_),
                                  UntilPoll(end))) {
    if (gone()) return absl::CancelledError("the client has gone");
    if (Clock::Monotonic().Now() >= end) return false;
  }
  return true;
}

void IdleScans::Run(Work& work) {
  absl::Status status;
  for (size_t i = 0; i < work.ranges.size() && status.ok(); ++i) {
    const absl::StatusOr<SlotScan> scan = ScanRange(work, work.ranges[i]);
    status = scan.status();
    absl::MutexLock lock(&work.mutex);
    if (scan.ok() && !work.unwanted) work.done.push_back(*scan);
  }
  {
    absl::MutexLock lock(&work.mutex);
    work.status = status;
    work.ended = true;
  }
  absl::MutexLock lock(&mutex_);
  scanning_ = false;
}

absl::StatusOr<SlotScan> IdleScans::ScanRange(Work& work, const SlotScanRange& range) {
  const auto read = [&](int32_t parameter, const std::string& slot, int64_t offset,
                        absl::Span<double> out) -> absl::StatusOr<SlotRead> {
    for (int pauses = 0;; ++pauses) {
      {
        const absl::StatusOr<ShardViewRegistry::Use> view = views_->Find(work.selector);
        if (!view.ok()) return view.status();
        if ((*view)->Activity().phase == RankPhase::kIdle || pauses == kMostPauses) {
          return (*view)->ReadSlot(parameter, slot, offset, out);
        }
      }
      absl::SleepFor(kPause);
    }
  };
  return ScanSlot(range, read, [&work] {
    absl::MutexLock lock(&work.mutex);
    return work.unwanted ? absl::CancelledError("the call has ended") : absl::OkStatus();
  });
}

}  // namespace optshard

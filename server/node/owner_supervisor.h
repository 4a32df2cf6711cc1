// Supplies a rank with an owner: forms the job, as often as it takes, and forms it again when the
// job has lost a rank.
#ifndef OPTSHARD_SERVER_NODE_OWNER_SUPERVISOR_H_
#define OPTSHARD_SERVER_NODE_OWNER_SUPERVISOR_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "common/log.h"

namespace optshard {

//   forming --> formed --FormAgain--> forming
//      '------> failed
//
// Forming blocks until all ranks are there, which may be never, so one thread of the supervisor's
// does nothing else, as long as the supervisor lives. It inherits the CPUs of the thread that makes
// it. While the job is formed, the owner is the caller's to use, without a lock.
//
// Bound to one thread, but for `done`. `Owner` has absl::Status Stop(absl::Duration timeout), which
// leaves the job.
template <typename Owner>
class OwnerSupervisor {
 public:
  struct Options {
    // Makes one attempt. `torn`: over state that is of no step, which all ranks know by now. Called
    // by the supervisor's thread.
    std::function<absl::StatusOr<std::unique_ptr<Owner>>(bool torn)> start;
    // Whether the rank has state: then an attempt that has failed is made again, unless it would
    // fail alike. Likewise called.
    std::function<bool()> has_state;
    // Called by that thread once the job is formed, or has failed to. Must not block.
    std::function<void()> on_done;
    LogContext who;                                        // speaks of failed attempts
    absl::Duration first_pause = absl::Milliseconds(100);  // between two attempts
    absl::Duration longest_pause = absl::Seconds(2);
    absl::Duration leave_timeout = absl::Seconds(2);
  };

  // Begins to form.
  explicit OwnerSupervisor(Options options)
      : options_(std::move(options)), thread_([this] { Run(); }) {}

  // Waits for the present attempt. An owner that is still there is destroyed, not stopped.
  ~OwnerSupervisor() {
    {
      absl::MutexLock lock(&mutex_);
      given_up_ = ended_ = true;
    }
    thread_.join();
  }

  // Whether it is forming no more. Any thread.
  bool done() const {
    absl::MutexLock lock(&mutex_);
    return !forming_;
  }

  // The rest, but GiveUp, only when done.

  // Valid until FormAgain. An error: the job cannot be formed, and nothing more is tried.
  absl::StatusOr<Owner*> owner() const {
    if (owner_ == nullptr) return failure_;
    return owner_.get();
  }

  // OK, or TornStep while what the memory has is the state of no step.
  const absl::Status& torn() const { return torn_; }
  // It is the state of a step again.
  void SetMended() { torn_ = absl::OkStatus(); }

  // The owner is of no use any more: it leaves the job, and another one is formed.
  void FormAgain() {
    absl::MutexLock lock(&mutex_);
    forming_ = true;
  }

  // No further attempt: where the present one fails, that is the end.
  void GiveUp() {
    absl::MutexLock lock(&mutex_);
    given_up_ = true;
  }

  // The pause after a pause of `last`; zero: there was none yet.
  static absl::Duration NextPause(absl::Duration last, const Options& options) {
    return std::clamp(2 * last, options.first_pause, options.longest_pause);
  }

 private:
  // Whether another attempt would fail alike: the states do not fit together, or this rank's place
  // is no more.
  static bool IsFinal(const absl::Status& failure) {
    if (absl::IsFailedPrecondition(failure)) {
      return !errors::IsStaleIncarnation(failure) && !errors::IsStaleGeneration(failure);
    }
    return absl::IsDataLoss(failure) || absl::IsInvalidArgument(failure);
  }

  void Run() {
    while (AwaitTask()) {
      if (owner_ != nullptr) owner_->Stop(options_.leave_timeout).IgnoreError();
      owner_ = nullptr;
      failure_ = Form();
      {
        absl::MutexLock lock(&mutex_);
        forming_ = false;
      }
      options_.on_done();
    }
  }

  // False: there is none any more.
  bool AwaitTask() {
    absl::MutexLock lock(&mutex_);
    const auto told = [this] {
      mutex_.AssertReaderHeld();
      return forming_ || ended_;
    };
    mutex_.Await(absl::Condition(&told));
    return !ended_;
  }

  bool given_up() const {
    absl::MutexLock lock(&mutex_);
    return given_up_;
  }

  absl::Status Form() {
    absl::Duration pause;
    while (true) {
      absl::StatusOr<std::unique_ptr<Owner>> started = options_.start(!torn_.ok());
      if (started.ok()) {
        owner_ = *std::move(started);
        return absl::OkStatus();
      }
      const absl::Status& failure = started.status();
      // All ranks have been told so, and all come back without a step.
      const bool torn = errors::IsTornStep(failure);
      if (!options_.has_state() || given_up() || (IsFinal(failure) && !torn)) return failure;
      if (torn && torn_.ok()) {
        torn_ = errors::WithContext(failure, "no step before a checkpoint is loaded");
      }
      pause = NextPause(pause, options_);
      Log(LogLevel::kWarning, options_.who, "cannot go on %s: %s",
          torn ? "before a checkpoint is loaded" : "yet", failure.message());
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&given_up_), pause)) return failure;
    }
  }

  const Options options_;
  // The supervisor's thread's while it forms, the caller's otherwise.
  std::unique_ptr<Owner> owner_;
  absl::Status failure_;
  absl::Status torn_;

  mutable absl::Mutex mutex_;
  bool forming_ ABSL_GUARDED_BY(mutex_) = true;
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_OWNER_SUPERVISOR_H_

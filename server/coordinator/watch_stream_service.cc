#include "server/coordinator/watch_stream_service.h"

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/membership/membership_rpc.h"
#include "common/rpc/status_rpc.h"

namespace optshard {
namespace {

using Reactor = grpc::ServerWriteReactor<v1::WatchEvent>;

// What the reactor shares with the coordinator's wake-ups, which may come after the reactor's end.
// Whoever starts a write or finishes claims that under the lock first; the reactor lives until it
// has been finished and its write is done, so the claim keeps it alive. Thread-safe.
class WatchState : public std::enable_shared_from_this<WatchState> {
 public:
  WatchState(Coordinator* coordinator, Caller caller, uint64_t after_sequence, Reactor* reactor)
      : coordinator_(coordinator),
        caller_(std::move(caller)),
        reactor_(reactor),
        written_sequence_(after_sequence) {}

  void Begin() {
    const absl::StatusOr<WatchId> watch =
        coordinator_->OpenWatch(caller_, [weak = weak_from_this()] {
          if (const std::shared_ptr<WatchState> state = weak.lock()) state->Advance();
        });
    if (!watch.ok()) {
      {
        absl::MutexLock lock(&mutex_);
        finished_ = true;
      }
      reactor_->Finish(ToGrpc(watch.status()));
      return;
    }
    {
      absl::MutexLock lock(&mutex_);
      watch_ = *watch;
    }
    Advance();
  }

  void WriteDone(bool ok) {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      message_ = v1::WatchEvent();  // there are as many streams as ranks
      cancelled_ |= !ok;
    }
    Advance();
  }

  void Cancel() {
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
    }
    Advance();
  }

  void Done() {
    WatchId watch;
    {
      absl::MutexLock lock(&mutex_);
      watch = watch_;
    }
    if (watch != 0) coordinator_->CloseWatch(caller_, watch);
  }

 private:
  enum class Action { kNone, kWrite, kFinish };

  // Writes the next event, or finishes, if there is something to do and nothing under way.
  void Advance() {
    grpc::Status status;
    Action action;
    {
      absl::MutexLock lock(&mutex_);
      action = Claim(status);
    }
    if (action == Action::kWrite) reactor_->StartWrite(&message_);
    if (action == Action::kFinish) reactor_->Finish(status);
  }

  Action Claim(grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return Action::kNone;
    if (cancelled_) {
      status = grpc::Status(grpc::StatusCode::CANCELLED, "the member is gone");
      finished_ = true;
      return Action::kFinish;
    }
    if (watch_ == 0) return Action::kNone;
    if (!opened_) {
      message_.mutable_stream_opened();
      opened_ = true;
      writing_ = true;
      return Action::kWrite;
    }
    const absl::StatusOr<WatchEvents> read =
        coordinator_->ReadEvents(caller_, watch_, written_sequence_);
    if (!read.ok() || (read->events.empty() && read->last)) {
      status = ToGrpc(read.status());
      finished_ = true;
      return Action::kFinish;
    }
    if (read->events.empty()) return Action::kNone;
    message_ = ToProto(read->events.front());
    written_sequence_ = message_.sequence();
    writing_ = true;
    return Action::kWrite;
  }

  Coordinator* const coordinator_;
  const Caller caller_;
  Reactor* const reactor_;

  absl::Mutex mutex_;
  WatchId watch_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t written_sequence_ ABSL_GUARDED_BY(mutex_);
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;  // StreamOpened is written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Written by whoever sets writing_, read by gRPC until the write is done.
  v1::WatchEvent message_;
};

class WatchReactor final : public Reactor {
 public:
  WatchReactor(Coordinator* coordinator, Caller caller, uint64_t after_sequence)
      : state_(std::make_shared<WatchState>(coordinator, std::move(caller), after_sequence, this)) {
  }

  void Begin() { state_->Begin(); }

  void OnWriteDone(bool ok) override { state_->WriteDone(ok); }
  void OnCancel() override { state_->Cancel(); }
  void OnDone() override {
    state_->Done();
    delete this;
  }

 private:
  const std::shared_ptr<WatchState> state_;
};

}  // namespace

grpc::ServerWriteReactor<v1::WatchEvent>* StartWatchStream(Coordinator* coordinator, Caller caller,
                                                           uint64_t after_sequence) {
  auto* reactor = new WatchReactor(coordinator, std::move(caller), after_sequence);
  reactor->Begin();
  return reactor;
}

}  // namespace optshard

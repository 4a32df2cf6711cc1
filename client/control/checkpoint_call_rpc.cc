#include "client/control/checkpoint_call_rpc.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/errors.h"
#include "common/request_id.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/kept_channels_rpc.h"
#include "common/rpc/status_rpc.h"
#include "proto/optshard/v1/checkpoint.grpc.pb.h"

namespace optshard {
namespace {

// The stream. Made and destroyed by a thread of the caller's: the last channel of a process must
// not go within a callback, whose thread gRPC 1.51 would join from itself
// (https://github.com/grpc/grpc/issues/37858).
class Stream final : public grpc::ClientReadReactor<v1::SaveCheckpointUpdate> {
 public:
  explicit Stream(const CheckpointCall::Request& request)
      : coordinator_(request.coordinator),
        stub_(v1::Checkpoints::NewStub(request.channels == nullptr
                                           ? MakeChannel(request.coordinator)
                                           : request.channels->To(request.coordinator))) {
    if (!request.model_shard_bytes.has_value()) {
      Fill(request, checkpoint_.emplace());
      for (const std::string& label : request.labels) checkpoint_->add_labels(label);
    } else {
      Fill(request, model_.emplace());
      model_->set_shard_bytes(*request.model_shard_bytes);
    }
  }

  // Its end waits until gRPC has seen the cancellation, which no peer can delay.
  ~Stream() override {
    context_.TryCancel();
    AwaitEnd(absl::InfiniteDuration());
  }

  void Start() {
    if (model_.has_value()) {
      stub_->async()->ExportModel(&context_, &*model_, this);
    } else {
      stub_->async()->SaveCheckpoint(&context_, &*checkpoint_, this);
    }
    StartRead(&incoming_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone says why
    {
      absl::MutexLock lock(&mutex_);
      last_ = incoming_;
    }
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    error_ = FromGrpc(status);
    if (IsTransportError(error_)) {
      error_ = errors::WithContext(error_, absl::StrCat("the coordinator at ", coordinator_));
    }
    if (error_.ok() && !last_.committed()) {
      error_ = absl::InternalError(
          absl::StrCat("the coordinator at ", coordinator_, " has not said what it has saved"));
    }
  }

  // Whether it was within `timeout`.
  bool AwaitOpened(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(this, &Stream::HasOpened), timeout);
  }
  bool AwaitEnd(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&ended_), timeout);
  }

  absl::Status error() const {
    absl::MutexLock lock(&mutex_);
    return error_;
  }
  v1::SaveCheckpointUpdate last() const {
    absl::MutexLock lock(&mutex_);
    return last_;
  }
  const std::string& coordinator() const { return coordinator_; }

 private:
  // What either request has.
  template <typename Message>
  static void Fill(const CheckpointCall::Request& request, Message& message) {
    message.set_optimizer(request.optimizer);
    message.set_directory(request.directory);
    message.set_request_id(NewRequestId());
    if (request.step.has_value()) message.set_step(*request.step);
    if (request.rank.has_value()) message.set_rank(*request.rank);
  }

  bool HasOpened() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return ended_ || last_.opened(); }

  const std::string coordinator_;
  const std::unique_ptr<v1::Checkpoints::Stub> stub_;
  grpc::ClientContext context_;
  absl::optional<v1::SaveCheckpointRequest> checkpoint_;  // one of the two
  absl::optional<v1::ExportModelRequest> model_;
  v1::SaveCheckpointUpdate incoming_;  // being read
  mutable absl::Mutex mutex_;
  v1::SaveCheckpointUpdate last_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

class RpcCheckpointCall final : public CheckpointCall {
 public:
  explicit RpcCheckpointCall(const Request& request) : stream_(request) { stream_.Start(); }

  absl::Status AwaitOpened(absl::Duration timeout) override {
    if (!stream_.AwaitOpened(timeout)) return TimedOut(timeout);
    return stream_.error();
  }

  absl::StatusOr<Saved> Await(absl::Duration timeout) override {
    if (!stream_.AwaitEnd(timeout)) return TimedOut(timeout);
    absl::Status error = stream_.error();
    if (!error.ok()) return error;
    const v1::SaveCheckpointUpdate last = stream_.last();
    Saved saved;
    saved.directory = last.directory();
    saved.name = last.name();
    saved.step = last.step();
    saved.bytes = last.bytes();
    saved.removed = {last.removed().begin(), last.removed().end()};
    return saved;
  }

  Progress progress() const override {
    const v1::SaveCheckpointUpdate last = stream_.last();
    return {last.summary(), last.bytes(), last.total_bytes()};
  }

 private:
  absl::Status TimedOut(absl::Duration timeout) const {
    const std::string summary = stream_.last().summary();
    return absl::DeadlineExceededError(absl::StrFormat(
        "the coordinator at %s has not finished within %s: %s", stream_.coordinator(),
        absl::FormatDuration(timeout), summary.empty() ? "it does not answer" : summary));
  }

  Stream stream_;
};

}  // namespace

std::unique_ptr<CheckpointCall> CheckpointCall::Start(const Request& request) {
  return std::make_unique<RpcCheckpointCall>(request);
}

}  // namespace optshard

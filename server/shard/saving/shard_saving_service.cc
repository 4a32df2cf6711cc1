#include "server/shard/saving/shard_saving_service.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/cancellation.h"
#include "common/new_thread.h"
#include "common/rpc/status_rpc.h"
#include "server/checkpoint/manifest_json.h"
#include "server/shard/saving/shard_save.h"

namespace optshard {
namespace {

constexpr int64_t kLongestPatienceMs = 600'000;
constexpr size_t kPieceBytes = 1 << 20;
constexpr absl::Duration kBetweenReports = absl::Milliseconds(100);

}  // namespace

// Destroys itself.
class ShardSavingService::Call final
    : public grpc::ServerBidiReactor<v1::SaveShardRequest, v1::SaveShardResponse> {
 public:
  Call(grpc::CallbackServerContext* context, ShardSavingService& service, FileSystem* files)
      : context_(context),
        options_(service.options_),
        calls_(service.calls_),
        silence_(service.options_.longest_silence) {
    save_options_.views = options_.views;
    save_options_.files = files;
    save_options_.writers = &service.writers_;
    save_options_.cancellation = &cancellation_;
    save_options_.memory_patience = options_.memory_patience;
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<std::thread> thread = StartThread(options_.start_thread, [this] { Run(); });
    if (thread.ok()) {
      thread_ = *std::move(thread);
    } else {
      Finish(ToGrpc(thread.status()));
    }
  }

  void OnReadDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    reading_ = false;
    has_message_ = ok;
    ended_ = ended_ || !ok;
    if (!ok || opening_ == nullptr || !request_.has_opened_elsewhere() || !may_be_told_) return;
    may_be_told_ = false;
    has_message_ = false;
    const v1::ShardOpened& opened = request_.opened_elsewhere();
    opening_->OpenedElsewhere({opened.generation(), opened.step(), opened.skipped()});
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    broken_ = broken_ || !ok;
  }

  void OnCancel() override {
    {
      absl::MutexLock lock(&mutex_);
      broken_ = true;
    }
    cancellation_.Cancel(Gone());
  }

  void OnDone() override {
    std::thread thread;
    {
      absl::MutexLock lock(&mutex_);
      thread = std::move(thread_);
    }
    // Finish may come here on the call's own thread, which does nothing after it.
    if (std::this_thread::get_id() == thread.get_id()) {
      thread.detach();
    } else if (thread.joinable()) {
      thread.join();
    }
    delete this;
  }

 private:
  void Run() {
    const std::shared_ptr<std::atomic<int>> calls = calls_;
    absl::Status status;
    if (calls->fetch_add(1) >= options_.most_calls) {
      status = absl::ResourceExhaustedError(
          absl::StrFormat("this process saves %d parts of checkpoints already; try again later",
                          options_.most_calls));
    } else {
      status = Save();
    }
    calls->fetch_sub(1);
    // Until then gRPC owns what it reads and writes.
    if (!IsWrittenWithin(options_.longest_write)) {
      context_->TryCancel();
      IsWrittenWithin(absl::InfiniteDuration());
    }
    Finish(ToGrpc(status));  // the last use of *this
  }

  absl::Status Save() {
    ShardSave save(save_options_);
    absl::Status done = Prepare(save);
    if (done.ok()) done = Open(save);
    if (done.ok()) done = is_model_ ? WriteModel(save) : Write(save);
    return done;
  }

  absl::Status Prepare(ShardSave& save) {
    absl::Status received = Receive(v1::SaveShardRequest::kPrepare, "prepare");
    if (!received.ok()) return received;
    const v1::PrepareShard& prepare = request_.prepare();
    ShardSave::Shard shard;
    shard.selector.optimizer = prepare.optimizer();
    if (prepare.has_rank()) shard.selector.rank = prepare.rank();
    shard.job = prepare.job();
    shard.snapshot = prepare.snapshot_id();
    if (prepare.has_at_step()) shard.at_step = prepare.at_step();
    shard.is_model = is_model_ = prepare.model();
    if (prepare.silence_ms() > 0) {
      silence_ = absl::Milliseconds(std::min(prepare.silence_ms(), kLongestPatienceMs));
    }
    absl::Status prepared = save.Prepare(shard);
    if (!prepared.ok()) return prepared;
    v1::SaveShardResponse response;
    response.mutable_prepared();
    return Send(response);
  }

  absl::Status Open(ShardSave& save) {
    absl::Status received = Receive(v1::SaveShardRequest::kOpen, "open");
    if (!received.ok()) return received;
    const absl::Duration patience = absl::Milliseconds(
        std::clamp<int64_t>(request_.open().patience_ms(), 0, kLongestPatienceMs));
    {
      absl::MutexLock lock(&mutex_);
      may_be_told_ = true;
    }
    BeginReading(&save);
    const absl::StatusOr<SnapshotMoment> opened = save.Open(patience);
    {
      absl::MutexLock lock(&mutex_);
      opening_ = nullptr;
    }
    if (!opened.ok()) return opened.status();
    v1::SaveShardResponse response;
    response.mutable_opened()->set_step(opened->step);
    response.mutable_opened()->set_generation(opened->generation);
    response.mutable_opened()->set_skipped(opened->skipped);
    return Send(response);
  }

  absl::Status Write(ShardSave& save) {
    absl::Status received = Receive(v1::SaveShardRequest::kWrite, "write");
    // Not before: while trainers wait for the end of their calls, who tells them has the CPUs.
    if (received.ok()) received = save.Copy();
    if (!received.ok()) return received;
    const auto written = save.Write(request_.write().directory(), request_.write().name(),
                                    [this](int64_t done, int64_t all) { Report(done, all); });
    if (!written.ok()) return written.status();
    absl::Status sent = SendText(ToText(written->part), &v1::ShardWritten::set_part_json);
    if (!sent.ok() || !written->description.has_value()) return sent;
    return SendText(ToText(*written->description), &v1::ShardWritten::set_description_json);
  }

  absl::Status WriteModel(ShardSave& save) {
    absl::Status received = Receive(v1::SaveShardRequest::kWriteModel, "write_model");
    if (received.ok()) received = save.Copy();
    if (!received.ok()) return received;
    const v1::WriteModelShare& request = request_.write_model();
    const auto written = save.WriteModel(
        {request.directory(), request.name(), request.shard_bytes(), request.layout_checksum()},
        [this](int64_t done, int64_t all) { Report(done, all); });
    if (!written.ok()) return written.status();
    v1::SaveShardResponse response;
    response.mutable_model_written()->set_bytes(*written);
    return Send(response);
  }

  absl::Status SendText(const std::string& text, void (v1::ShardWritten::*set)(std::string&&)) {
    for (size_t sent = 0; sent < text.size(); sent += kPieceBytes) {
      v1::SaveShardResponse response;
      (response.mutable_written()->*set)(text.substr(sent, kPieceBytes));
      absl::Status done = Send(response);
      if (!done.ok()) return done;
    }
    return absl::OkStatus();
  }

  // Reads the next message, where none is there or being read. `opening`, which may be null, is
  // told what another owner has opened.
  void BeginReading(ShardSave* opening) {
    {
      absl::MutexLock lock(&mutex_);
      opening_ = opening;
      if (broken_ || ended_ || reading_ || has_message_) return;
      reading_ = true;
    }
    StartRead(&request_);
  }

  // Waits for the client's next message, which must be this one. What another owner has opened may
  // come before it, once: too late to be of use.
  absl::Status Receive(v1::SaveShardRequest::RequestCase expected, absl::string_view name) {
    absl::Status received = ReceiveAny(name);
    if (received.ok() && request_.has_opened_elsewhere() && MayBeTold()) {
      received = ReceiveAny(name);
    }
    if (!received.ok() || request_.request_case() == expected) return received;
    return absl::InvalidArgumentError(
        absl::StrFormat("message %d of SaveShardRequest came where %s was expected",
                        request_.request_case(), name));
  }

  absl::Status ReceiveAny(absl::string_view name) {
    BeginReading(nullptr);
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(this, &Call::IsReadOrBroken), silence_)) {
      return absl::DeadlineExceededError(absl::StrFormat("the client has not sent %s for %s", name,
                                                         absl::FormatDuration(silence_)));
    }
    if (broken_ || !std::exchange(has_message_, false)) return Gone();
    return absl::OkStatus();
  }

  absl::Status Send(const v1::SaveShardResponse& response) {
    bool is_slow = false;
    {
      absl::MutexLock lock(&mutex_);
      is_slow =
          !mutex_.AwaitWithTimeout(absl::Condition(this, &Call::IsWritten), options_.longest_write);
      if (broken_) return Gone();
      if (!is_slow) writing_ = true;
    }
    if (is_slow) {
      context_->TryCancel();
      return absl::DeadlineExceededError(absl::StrFormat(
          "the client has taken nothing for %s", absl::FormatDuration(options_.longest_write)));
    }
    response_ = response;
    StartWrite(&response_);
    return absl::OkStatus();
  }

  // How far it is, where the last message has left already.
  void Report(int64_t done, int64_t all) {
    const absl::Time now = absl::Now();
    if (now < next_report_) return;
    next_report_ = now + kBetweenReports;
    {
      absl::MutexLock lock(&mutex_);
      if (writing_ || broken_) return;
      writing_ = true;
    }
    response_.Clear();
    response_.mutable_writing()->set_bytes(done);
    response_.mutable_writing()->set_total_bytes(all);
    StartWrite(&response_);
  }

  bool IsWrittenWithin(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(this, &Call::IsWritten), timeout);
  }
  // Once.
  bool MayBeTold() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(may_be_told_, false);
  }
  bool IsReadOrBroken() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !reading_ || broken_; }
  bool IsWritten() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !writing_; }
  static absl::Status Gone() { return absl::CancelledError("the client has gone"); }

  grpc::CallbackServerContext* const context_;
  const Options& options_;
  const std::shared_ptr<std::atomic<int>> calls_;
  absl::Duration silence_;
  bool is_model_ = false;
  ShardSave::Options save_options_;
  Cancellation cancellation_;
  absl::Time next_report_ = absl::InfinitePast();
  v1::SaveShardRequest request_;    // being read, or read
  v1::SaveShardResponse response_;  // being written, or written

  absl::Mutex mutex_;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
  ShardSave* opening_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool may_be_told_ ABSL_GUARDED_BY(mutex_) = false;  // what another owner has opened
  bool has_message_ ABSL_GUARDED_BY(mutex_) = false;  // in request_
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // the client sends nothing more
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
};

grpc::ServerBidiReactor<v1::SaveShardRequest, v1::SaveShardResponse>* ShardSavingService::SaveShard(
    grpc::CallbackServerContext* context) {
  return new Call(context, *this, options_.files != nullptr ? options_.files : &system_);
}

}  // namespace optshard

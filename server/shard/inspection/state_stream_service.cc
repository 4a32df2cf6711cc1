#include "server/shard/inspection/state_stream_service.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/block_code.h"
#include "common/clock.h"
#include "common/hyperparameters.h"
#include "common/membership/common_proto.h"
#include "common/new_thread.h"
#include "common/rpc/state_frame_rpc.h"
#include "common/rpc/status_rpc.h"
#include "server/shard/inspection/view_of_request.h"
#include "server/shard/snapshot/agreed_snapshots.h"
#include "server/shard/snapshot/shard_snapshot.h"

namespace optshard {
namespace {

constexpr int64_t kFrameBytes = 2 << 20;
constexpr absl::Duration kLook = absl::Milliseconds(100);  // whether the client is still there

// What gRPC has not sent yet.
class SlicesUnderWay {
 public:
  void Add() {
    absl::MutexLock lock(&mutex_);
    ++count_;
  }
  void Release() {
    absl::MutexLock lock(&mutex_);
    --count_;
  }
  bool WaitForNone(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(
                                       +[](int* count) { return *count == 0; }, &count_),
                                   timeout);
  }

 private:
  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

class StateStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  StateStream(grpc::CallbackServerContext* context, const grpc::ByteBuffer& request,
              ShardViewRegistry* views, const StateStreamLimits& limits, StateStreamCount streams)
      : context_(context), views_(*views), limits_(limits), streams_(std::move(streams)) {
    grpc::ByteBuffer copy = request;
    grpc::ProtoBufferReader reader(&copy);
    parsed_ = reader.status().ok() && request_.ParseFromZeroCopyStream(&reader);
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<std::thread> thread = StartThread(limits_.start_thread, [this] { Run(); });
    if (thread.ok()) {
      thread_ = *std::move(thread);
    } else {
      Finish(ToGrpc(thread.status()));
    }
  }

  // The next frame follows here, so that the client never waits for this stream's thread.
  void OnWriteDone(bool ok) override {
    grpc::ByteBuffer written;
    {
      absl::MutexLock lock(&mutex_);
      written.Swap(&message_);
      broken_ = broken_ || !ok;
      if (broken_) DropNext();
      writing_ = has_next_;
      if (!writing_) return;
      message_.Swap(&next_);
      has_next_ = false;
    }
    StartWrite(&message_);
  }

  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    broken_ = true;
  }

  void OnDone() override {
    std::thread thread;
    {
      absl::MutexLock lock(&mutex_);
      thread = std::move(thread_);
    }
    // Finish may come here on the stream's own thread, which does nothing after it.
    if (std::this_thread::get_id() == thread.get_id()) {
      thread.detach();
    } else if (thread.joinable()) {
      thread.join();
    }
    delete this;
  }

 private:
  void Run() {
    const StateStreamCount streams = streams_;
    absl::Status status;
    if (streams->fetch_add(1) >= limits_.most) {
      status = absl::AbortedError(absl::StrFormat(
          "%d clients read state from this process at once; ask again later", limits_.most));
    } else {
      status = Send();
    }
    streams->fetch_sub(1);
    Finish(ToGrpc(status));  // the last use of *this
  }

  absl::Status Send() {
    if (!parsed_) return absl::InvalidArgumentError("the request is no ReadStateRequest");
    const absl::StatusOr<std::shared_ptr<ShardSnapshot>> snapshot = Open();
    if (!snapshot.ok()) return snapshot.status();
    absl::Status sent = SendAll(*snapshot);
    if (absl::IsDeadlineExceeded(sent)) context_->TryCancel();
    sent.Update(AwaitWritten());
    // Where the call has failed, gRPC may hold slices for as long as the connection lasts.
    (*snapshot)->Close();
    return sent;
  }

  absl::Status SendAll(const std::shared_ptr<ShardSnapshot>& snapshot) {
    head_.set_step(snapshot->step());
    head_.set_generation(snapshot->generation());
    int64_t total = 0;
    std::vector<int> pending(snapshot->parts().size());
    for (size_t i = 0; i < pending.size(); ++i) {
      pending[i] = static_cast<int>(i);
      total += snapshot->parts()[i].bytes();
    }
    head_.set_total_bytes(total);
    absl::Status begun = SendHyperparameters(snapshot);
    if (!begun.ok()) return begun;
    // A rank that owns nothing says of which step that is.
    if (pending.empty()) return SendFrame(snapshot, nullptr, 0);
    while (!pending.empty()) {
      std::vector<int> live;
      for (const int part : pending) {
        const ShardSnapshot::PartState state = snapshot->state(part);
        if (state == ShardSnapshot::PartState::kLost) return Overtaken(*snapshot);
        if (state == ShardSnapshot::PartState::kLive) live.push_back(part);
        absl::Status sent = SendPart(snapshot, part);
        if (!sent.ok()) return sent;
      }
      // Once they have left, whether they were right.
      if (!slices_->WaitForNone(limits_.patience_with_client)) return SlowClient();
      pending.clear();
      for (const int part : live) {
        const ShardSnapshot::PartState state = snapshot->state(part);
        if (state == ShardSnapshot::PartState::kKept) pending.push_back(part);
        if (state == ShardSnapshot::PartState::kLost) return Overtaken(*snapshot);
      }
    }
    return absl::OkStatus();
  }

  absl::Status SendHyperparameters(const std::shared_ptr<ShardSnapshot>& snapshot) {
    if (!request_.hyperparameters()) return absl::OkStatus();
    int group = 0;
    absl::Status sent;
    for (const Hyperparameters& values : snapshot->hyperparameters()) {
      head_.set_group(group++);
      *head_.mutable_hyperparameters() = ToProto(values);
      sent = SendFrame(snapshot, nullptr, 0);
      if (!sent.ok()) break;
    }
    head_.clear_group();
    head_.clear_hyperparameters();
    return sent;
  }

  static absl::Status Overtaken(const ShardSnapshot& snapshot) {
    return absl::AbortedError(
        absl::StrFormat("the state of step %d has changed while it was read; ask again, with "
                        "keep_copies while steps go on",
                        snapshot.step()));
  }

  absl::StatusOr<std::shared_ptr<ShardSnapshot>> Open() {
    std::shared_ptr<AgreedSnapshots> agreed;
    {
      // Only briefly: an owner that goes away waits for it.
      const absl::StatusOr<ShardViewRegistry::Use> view =
          FindView(views_, request_, request_.job());
      if (!view.ok()) return view.status();
      if (request_.snapshot() == 0) {
        absl::StatusOr<std::unique_ptr<ShardSnapshot>> opened =
            (*view)->OpenSnapshot(request_.keep_copies(), limits_.patience_with_steps);
        if (!opened.ok()) return opened.status();
        return std::shared_ptr<ShardSnapshot>(*std::move(opened));
      }
      absl::StatusOr<std::shared_ptr<AgreedSnapshots>> of_owner = (*view)->agreed_snapshots();
      if (!of_owner.ok()) return of_owner.status();
      agreed = *std::move(of_owner);
    }
    return Take(*agreed);
  }

  absl::StatusOr<std::shared_ptr<ShardSnapshot>> Take(AgreedSnapshots& agreed) {
    const absl::Time deadline = Clock::Monotonic().Now() + limits_.patience_with_calls;
    while (true) {
      const absl::StatusOr<SnapshotMoment> opened = agreed.Open(request_.snapshot(), kLook);
      if (opened.ok()) {
        head_.set_skipped(opened->skipped);
        absl::StatusOr<std::unique_ptr<ShardSnapshot>> taken =
            agreed.Take(request_.snapshot(), absl::ZeroDuration());
        if (!taken.ok()) return taken.status();
        return std::shared_ptr<ShardSnapshot>(*std::move(taken));
      }
      if (!absl::IsDeadlineExceeded(opened.status())) return opened.status();
      absl::Status ends = Clock::Monotonic().Now() < deadline ? absl::OkStatus() : opened.status();
      absl::MutexLock lock(&mutex_);
      if (broken_) ends = Gone();
      if (ends.ok()) continue;
      agreed.Forget(request_.snapshot());
      return ends;
    }
  }

  absl::Status SlowClient() const {
    return absl::DeadlineExceededError(absl::StrFormat(
        "the client has taken nothing for %s", absl::FormatDuration(limits_.patience_with_client)));
  }

  absl::Status SendPart(const std::shared_ptr<ShardSnapshot>& snapshot, int index) {
    const ShardSnapshot::Part& part = snapshot->parts()[index];
    const int64_t size = ElementBytes(part.format);
    const int64_t most = kFrameBytes / size;
    static_assert(kFrameBytes % (kCodeGrid * sizeof(double)) == 0, "decoded block by block");
    head_.set_parameter(part.parameter);
    head_.set_slot(part.slot);
    head_.set_format(static_cast<v1::StateFormat>(part.format));
    for (int64_t first = 0; first < part.elements; first += most) {
      const int64_t elements = std::min(most, part.elements - first);
      head_.set_offset_elements(part.offset_elements + first);
      head_.set_elements(elements);
      const ShardSnapshot::Bytes bytes = snapshot->Read(index, first, elements);
      absl::Status sent = SendFrame(snapshot, bytes.data, elements * size, bytes.owner);
      if (!sent.ok()) return sent;
    }
    return absl::OkStatus();
  }

  absl::Status SendFrame(const std::shared_ptr<ShardSnapshot>& snapshot, const char* data,
                         size_t bytes, std::shared_ptr<const void> owner = nullptr) {
    slices_->Add();
    grpc::ByteBuffer frame = EncodeStateFrame(
        head_, data, bytes,
        [slices = slices_, keeps = std::make_pair(snapshot, std::move(owner))]() mutable {
          keeps = {};
          slices->Release();
        });
    bool begins = false;
    {
      absl::MutexLock lock(&mutex_);
      const bool is_room = mutex_.AwaitWithTimeout(absl::Condition(this, &StateStream::HasRoom),
                                                   limits_.patience_with_client);
      if (!is_room) return SlowClient();
      if (broken_) return Gone();
      begins = !std::exchange(writing_, true);
      has_next_ = !begins;
      (begins ? message_ : next_).Swap(&frame);
    }
    if (begins) StartWrite(&message_);
    return absl::OkStatus();
  }

  // By then gRPC has none of the call's messages any more.
  absl::Status AwaitWritten() {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(this, &StateStream::IsWritten),
                                  limits_.patience_with_client)) {
        return broken_ ? Gone() : absl::OkStatus();
      }
      DropNext();
    }
    context_->TryCancel();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &StateStream::IsWritten));
    return SlowClient();
  }

  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !has_next_ || broken_; }
  bool IsWritten() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !writing_; }
  void DropNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    next_.Clear();
    has_next_ = false;
  }
  static absl::Status Gone() { return absl::CancelledError("the client has gone"); }

  grpc::CallbackServerContext* const context_;
  ShardViewRegistry& views_;
  const StateStreamLimits limits_;
  const StateStreamCount streams_;
  v1::ReadStateRequest request_;
  bool parsed_ = false;
  v1::StateFrame head_;
  const std::shared_ptr<SlicesUnderWay> slices_ = std::make_shared<SlicesUnderWay>();
  absl::Mutex mutex_;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer message_;  // being written, where writing_
  grpc::ByteBuffer next_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_next_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartStateStream(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer& request,
                                                             ShardViewRegistry* views,
                                                             const StateStreamLimits& limits,
                                                             StateStreamCount streams) {
  return new StateStream(context, request, views, limits, std::move(streams));
}

}  // namespace optshard

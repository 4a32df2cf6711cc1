#include "client/control/state_pull_rpc.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/types/optional.h"
#include "client/control/owner_snapshots_rpc.h"
#include "common/checked_math.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/membership/common_proto.h"
#include "common/request_limits.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/state_frame_rpc.h"
#include "common/rpc/status_rpc.h"

namespace optshard {
namespace {

constexpr char kMethod[] = "/optshard.v1.ShardOwner/ReadState";
constexpr absl::Duration kFirstPause = absl::Milliseconds(5);
constexpr absl::Duration kLongestPause = absl::Milliseconds(200);
// The votes of running steps open a snapshot sooner.
constexpr absl::Duration kUntilOthersAreTold = absl::Milliseconds(20);

// glibc learns from the end of blocks of less than 32 MiB (mallopt(3), M_MMAP_THRESHOLD).
constexpr size_t kLargeBlockBytes = (32 << 20) - (64 << 10);

// Until a large block was freed, glibc gives all memory of more than 128 KiB that is free at the
// end of a thread's heap back at once: each message of the streams is then faulted in anew, which
// takes as long as to copy it. LibTorch has freed such blocks; other programs may not. Where the
// program has set that threshold, this changes nothing.
void HaveFreedMemoryKept() {
  void* volatile block = std::malloc(kLargeBlockBytes);  // never touched
  std::free(block);
}

using Moment = std::pair<StepNumber, Generation>;

// One attempt to read all owners.
class Attempt {
 public:
  Attempt(const OwnerSnapshots& all, SnapshotId id, StateDestination& destination,
          const StatePullOptions& options)
      : all_(all), owners_(all.owners), id_(id), destination_(destination), options_(options) {}

  // By then all streams have ended.
  absl::Status Run(absl::Time deadline);

  const PulledStep& pulled() const { return pulled_; }

 private:
  class Stream;

  // Whether the owner is read at the same step as the others.
  absl::Status Saw(int owner, const v1::StateFrame& head, int64_t bytes);
  absl::Status TakeGroup(int owner, const v1::StateFrame& head);
  absl::Status Take(int owner, const grpc::ByteBuffer& message);
  void Ended(int owner, const absl::Status& status);
  void Fail(const absl::Status& status);
  // Has those owners open the snapshot that wait for the vote of one that has: its trainer may wait
  // for this call.
  void TellOthers();
  bool HaveAllEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ended_ == owners_.size();
  }
  bool HasOneOpened() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return moment_.has_value() || HaveAllEnded();
  }
  bool HaveAllOpened() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return total_bytes_.size() == owners_.size() || !status_.ok() || HaveAllEnded();
  }
  const std::string& NameOfOwner(int owner) const { return owners_[owner].name; }

  const OwnerSnapshots& all_;
  const std::vector<ConnectedOwner>& owners_;
  const SnapshotId id_;
  StateDestination& destination_;
  const StatePullOptions& options_;
  std::vector<std::unique_ptr<Stream>> streams_;
  PulledStep pulled_;  // once all have ended

  absl::Mutex mutex_;
  size_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  absl::optional<std::pair<int, Moment>> moment_ ABSL_GUARDED_BY(mutex_);  // of the first owner
  uint64_t skipped_ ABSL_GUARDED_BY(mutex_) = 0;                           // calls, likewise
  int64_t done_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Hyperparameters> hyperparameters_ ABSL_GUARDED_BY(mutex_);  // by group
  // By owner: what it says it has, and what has come, of which some may have come again.
  std::map<int, int64_t> total_bytes_ ABSL_GUARDED_BY(mutex_);
  std::map<int, int64_t> received_bytes_ ABSL_GUARDED_BY(mutex_);
};

// One owner's frames. Calls of it come one at a time.
class Attempt::Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(Attempt* attempt, int owner) : attempt_(*attempt), owner_(owner) {}

  void Start(absl::Duration timeout) {
    const ConnectedOwner& owner = attempt_.owners_[owner_];
    v1::ReadStateRequest request;
    request.set_job(attempt_.options_.job);
    request.set_optimizer(attempt_.options_.optimizer);
    request.set_rank(owner.rank);
    request.set_snapshot(attempt_.id_);
    request.set_hyperparameters(attempt_.options_.hyperparameters && owner_ == 0);
    const grpc::Slice bytes(request.SerializeAsString());
    request_ = grpc::ByteBuffer(&bytes, 1);
    context_.set_deadline(DeadlineAfter(timeout));
    stub_ = std::make_unique<grpc::GenericStub>(owner.channel);
    stub_->PrepareBidiStreamingCall(&context_, kMethod, grpc::StubOptions(), this);
    StartWriteLast(&request_, grpc::WriteOptions());
    StartRead(&message_);
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    absl::Status taken = attempt_.Take(owner_, message_);
    message_.Clear();
    if (!taken.ok()) {
      attempt_.Fail(taken);
      return;
    }
    StartRead(&message_);
  }

  void OnDone(const grpc::Status& status) override { attempt_.Ended(owner_, FromGrpc(status)); }

 private:
  Attempt& attempt_;
  const int owner_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer message_;
  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::ClientContext context_;
};

absl::Status Attempt::Saw(int owner, const v1::StateFrame& head, int64_t bytes) {
  const Moment moment(head.step(), head.generation());
  int64_t done = 0;
  int64_t total = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (!moment_.has_value()) {
      moment_ = {owner, moment};
      skipped_ = head.skipped();
    }
    if (moment_->second != moment) {
      return absl::AbortedError(absl::StrFormat(
          "rank %d was read at step %d (generation %d) and rank %d at step %d (generation %d)",
          owners_[moment_->first].rank, moment_->second.first, moment_->second.second,
          owners_[owner].rank, moment.first, moment.second));
    }
    total_bytes_[owner] = head.total_bytes();
    done_bytes_ = SaturatingAdd(done_bytes_, bytes);
    received_bytes_[owner] = SaturatingAdd(received_bytes_[owner], bytes);
    // Until all have said how much they have, nobody knows.
    if (total_bytes_.size() == owners_.size()) {
      for (const auto& [each, of_it] : total_bytes_) total = SaturatingAdd(total, of_it);
    }
    done = std::min(done_bytes_, total);
  }
  if (options_.progress && total > 0) options_.progress(done, total);
  return absl::OkStatus();
}

absl::Status Attempt::TakeGroup(int owner, const v1::StateFrame& head) {
  absl::MutexLock lock(&mutex_);
  // In their order, so that an owner cannot have more of them kept than it sends.
  const auto expected = static_cast<int32_t>(hyperparameters_.size());
  if (owner != 0 || !options_.hyperparameters || head.group() != expected ||
      expected >= kMaxGroups) {
    return absl::InternalError(
        absl::StrFormat("%s sends hyperparameters of group %d, expected those of group %d",
                        NameOfOwner(owner), head.group(), expected));
  }
  absl::StatusOr<Hyperparameters> values = FromProto(head.hyperparameters());
  if (!values.ok()) {
    return absl::InternalError(absl::StrFormat("%s sends of group %d what is no hyperparameter: %s",
                                               NameOfOwner(owner), head.group(),
                                               values.status().message()));
  }
  hyperparameters_.push_back(*std::move(values));
  return absl::OkStatus();
}

absl::Status Attempt::Take(int owner, const grpc::ByteBuffer& message) {
  const absl::StatusOr<StateFrameParts> frame = DecodeStateFrame(message);
  if (!frame.ok()) return errors::WithContext(frame.status(), NameOfOwner(owner));
  const auto bytes = static_cast<int64_t>(frame->value_bytes);
  absl::Status same = Saw(owner, frame->head, bytes);
  if (!same.ok()) return same;
  if (frame->head.has_group()) return TakeGroup(owner, frame->head);
  // An owner of nothing says only which step it is.
  if (frame->head.slot().empty() && bytes == 0) return absl::OkStatus();
  StateDestination::Piece piece;
  piece.parameter = frame->head.parameter();
  piece.slot = frame->head.slot();
  piece.format = static_cast<StateFormat>(frame->head.format());
  piece.offset_elements = frame->head.offset_elements();
  piece.elements = frame->head.elements();
  if (static_cast<int>(piece.format) != frame->head.format() || !IsKnown(piece.format) ||
      piece.parameter < 0 || piece.offset_elements < 0 || piece.elements < 0 ||
      piece.elements > bytes || piece.bytes() != bytes) {
    return absl::InternalError(absl::StrFormat(
        "%s sends %d bytes as %d elements from %d on of slot \"%s\" of parameter %d, format %d",
        NameOfOwner(owner), bytes, piece.elements, piece.offset_elements, piece.slot,
        piece.parameter, frame->head.format()));
  }
  std::vector<StateDestination::Bytes> values;
  for (const StateFrameParts::Part& part : frame->values) values.push_back({part.data, part.bytes});
  const absl::Status taken = destination_.Take(piece, values);
  return taken.ok() ? taken : errors::WithContext(taken, NameOfOwner(owner));
}

void Attempt::Fail(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok()) return;
    status_ = status;
  }
  for (const std::unique_ptr<Stream>& stream : streams_) stream->Cancel();
}

void Attempt::Ended(int owner, const absl::Status& status) {
  if (!status.ok()) Fail(errors::WithContext(status, NameOfOwner(owner)));
  absl::MutexLock lock(&mutex_);
  ++ended_;
}

void Attempt::TellOthers() {
  OwnerSnapshots waiting;
  waiting.job = all_.job;
  waiting.optimizer = all_.optimizer;
  SnapshotMoment opened;
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Attempt::HasOneOpened));  // each stream has the deadline
    if (mutex_.AwaitWithTimeout(absl::Condition(this, &Attempt::HaveAllOpened),
                                kUntilOthersAreTold)) {
      return;
    }
    opened = {moment_->second.second, moment_->second.first, skipped_};
    for (size_t i = 0; i < owners_.size(); ++i) {
      if (total_bytes_.count(static_cast<int>(i)) == 0) waiting.owners.push_back(owners_[i]);
    }
  }
  FollowSnapshot(waiting, id_, opened, options_.cancellation);
}

absl::Status Attempt::Run(absl::Time deadline) {
  for (size_t i = 0; i < owners_.size(); ++i) {
    streams_.push_back(std::make_unique<Stream>(this, static_cast<int>(i)));
  }
  const absl::Duration timeout = deadline - Clock::Monotonic().Now();
  for (const std::unique_ptr<Stream>& stream : streams_) stream->Start(timeout);
  {
    const Cancellation::Callback end(options_.cancellation,
                                     [this] { Fail(options_.cancellation->reason()); });
    TellOthers();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Attempt::HaveAllEnded));
  }
  absl::MutexLock lock(&mutex_);
  if (!status_.ok()) return status_;
  for (const auto& [owner, bytes] : total_bytes_) {
    if (received_bytes_[owner] < bytes) {
      return absl::InternalError(absl::StrFormat(
          "%s ended with %d of its %d bytes", NameOfOwner(owner), received_bytes_[owner], bytes));
    }
    pulled_.bytes = SaturatingAdd(pulled_.bytes, bytes);
  }
  if (moment_.has_value()) {
    pulled_.step = moment_->second.first;
    pulled_.generation = moment_->second.second;
  }
  pulled_.hyperparameters = std::move(hyperparameters_);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PulledStep> PullState(absl::Span<const StateOwnerAddress> owners,
                                     StateDestination& destination,
                                     const StatePullOptions& options) {
  HaveFreedMemoryKept();
  const absl::Time deadline = Clock::Monotonic().Now() + options.timeout;
  OwnerSnapshots all;
  all.job = options.job;
  all.optimizer = options.optimizer;
  for (const StateOwnerAddress& owner : owners) {
    all.owners.push_back({owner.rank,
                          absl::StrCat("the owner of rank ", owner.rank, " at ", owner.address),
                          MakeBulkChannel(owner.address)});
  }
  absl::Duration pause = kFirstPause;
  absl::Status apart;  // how the last attempt ended that was not cut off
  while (true) {
    const SnapshotId id = NewSnapshotId();
    Attempt attempt(all, id, destination, options);
    absl::Status read = PrepareSnapshot(all, id, {options.keep_copies, options.parameters},
                                        deadline - Clock::Monotonic().Now(), options.cancellation);
    if (read.ok()) {
      read = attempt.Run(deadline);
      // Also where it is read: the owners' next votes need not tell of it.
      ForgetSnapshot(all, id);
      if (read.ok()) return attempt.pulled();
    }
    // gRPC's own, where nobody told it otherwise.
    if (options.cancellation != nullptr && !options.cancellation->reason().ok()) {
      return options.cancellation->reason();
    }
    const bool is_cut_off = absl::IsDeadlineExceeded(read) && !apart.ok();
    if (!absl::IsAborted(read) && !is_cut_off) return read;
    if (!is_cut_off) apart = read;
    if (is_cut_off || Clock::Monotonic().Now() + pause > deadline) {
      return absl::DeadlineExceededError(
          absl::StrFormat("the owners' state was not read at one step within %s; the last time: %s",
                          absl::FormatDuration(options.timeout), apart.message()));
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace optshard

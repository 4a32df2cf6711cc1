#include "client/control/owner_snapshots_rpc.h"

#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <deque>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/errors.h"
#include "common/request_id.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/hand_over.h"
#include "common/rpc/status_rpc.h"
#include "proto/optshard/v1/shard_owner.grpc.pb.h"

namespace optshard {
namespace {

constexpr absl::Duration kTellTimeout = absl::Seconds(1);

// The same call of all owners at once. Thread-safe.
template <typename Request, typename Response>
class CallOfAll {
 public:
  using Done = std::function<void(grpc::Status)>;
  using Start = std::function<void(v1::ShardOwner::Stub&, grpc::ClientContext*, const Request*,
                                   Response*, Done)>;

  // `request` lacks what names the owner.
  CallOfAll(const OwnerSnapshots& all, const Request& request, absl::Duration timeout) : all_(all) {
    for (const ConnectedOwner& owner : all.owners) {
      Call& call = calls_.emplace_back();
      call.request = request;
      call.request.set_optimizer(all.optimizer);
      call.request.set_rank(owner.rank);
      call.context.set_deadline(DeadlineAfter(timeout));
      call.stub = v1::ShardOwner::NewStub(owner.channel);
    }
  }

  // Once all have answered: the first error.
  absl::Status Run(const Start& start, Cancellation* cancellation) {
    HandOver(this);
    for (size_t i = 0; i < calls_.size(); ++i) {
      Call& call = calls_[i];
      start(*call.stub, &call.context, &call.request, &call.response,
            [this, i](const grpc::Status& status) { Ended(i, FromGrpc(status)); });
    }
    const Cancellation::Callback end(cancellation, [this] { Cancel(); });
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &CallOfAll::HaveAllEnded));  // each has the deadline
    if (cancellation != nullptr && !cancellation->reason().ok()) return cancellation->reason();
    return status_;
  }

 private:
  struct Call {
    std::unique_ptr<v1::ShardOwner::Stub> stub;
    grpc::ClientContext context;
    Request request;
    Response response;
  };

  void Cancel() {
    for (Call& call : calls_) call.context.TryCancel();
  }

  void Ended(size_t owner, const absl::Status& status) {
    TakeOver(this);
    bool is_first = false;
    {
      absl::MutexLock lock(&mutex_);
      is_first = status_.ok() && !status.ok();
      if (is_first) status_ = errors::WithContext(status, all_.owners[owner].name);
    }
    if (is_first) Cancel();
    absl::MutexLock lock(&mutex_);
    ++ended_;
  }

  bool HaveAllEnded() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return ended_ == calls_.size(); }

  const OwnerSnapshots& all_;
  std::deque<Call> calls_;
  absl::Mutex mutex_;
  size_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

SnapshotId NewSnapshotId() {
  constexpr int kHexDigits = 2 * sizeof(SnapshotId);
  return std::strtoull(NewRequestId().substr(0, kHexDigits).c_str(), nullptr, 16) | 1;
}

absl::Status PrepareSnapshot(const OwnerSnapshots& all, SnapshotId id,
                             const SnapshotContents& contents, absl::Duration timeout,
                             Cancellation* cancellation) {
  v1::PrepareSnapshotRequest request;
  request.set_job(all.job);
  request.set_snapshot(id);
  request.set_keep_copies(contents.keep_copies);
  request.set_parameters(contents.parameters);
  CallOfAll<v1::PrepareSnapshotRequest, v1::PrepareSnapshotResponse> calls(all, request, timeout);
  absl::Status prepared = calls.Run(
      [](v1::ShardOwner::Stub& stub, grpc::ClientContext* context, const auto* one, auto* response,
         auto done) { stub.async()->PrepareSnapshot(context, one, response, std::move(done)); },
      cancellation);
  if (!prepared.ok()) ForgetSnapshot(all, id);
  return prepared;
}

void FollowSnapshot(const OwnerSnapshots& all, SnapshotId id, const SnapshotMoment& moment,
                    Cancellation* cancellation) {
  v1::FollowSnapshotRequest request;
  request.set_snapshot(id);
  request.set_step(moment.step);
  request.set_generation(moment.generation);
  request.set_skipped(moment.skipped);
  CallOfAll<v1::FollowSnapshotRequest, v1::FollowSnapshotResponse> calls(all, request,
                                                                         kTellTimeout);
  calls
      .Run([](v1::ShardOwner::Stub& stub, grpc::ClientContext* context, const auto* one,
              auto* response,
              auto done) { stub.async()->FollowSnapshot(context, one, response, std::move(done)); },
           cancellation)
      .IgnoreError();
}

void ForgetSnapshot(const OwnerSnapshots& all, SnapshotId id) {
  v1::ForgetSnapshotRequest request;
  request.set_snapshot(id);
  CallOfAll<v1::ForgetSnapshotRequest, v1::ForgetSnapshotResponse> calls(all, request,
                                                                         kTellTimeout);
  calls
      .Run([](v1::ShardOwner::Stub& stub, grpc::ClientContext* context, const auto* one,
              auto* response,
              auto done) { stub.async()->ForgetSnapshot(context, one, response, std::move(done)); },
           nullptr)
      .IgnoreError();
}

}  // namespace optshard

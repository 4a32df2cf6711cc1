#include "server/coordinator/saving/saving_owners_rpc.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <random>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "common/errors.h"
#include "common/rpc/status_rpc.h"
#include "proto/optshard/v1/checkpoint.grpc.pb.h"
#include "server/checkpoint/array_format.h"
#include "server/checkpoint/manifest_json.h"
#include "server/checkpoint/model_layout.h"
#include "server/shard/snapshot/snapshot_id.h"

namespace optshard {
namespace {

// Of what one owner says of its part, or of the optimizer.
constexpr size_t kMostTextBytes = size_t{256} << 20;

struct Target {
  Rank rank = 0;
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
  std::string optimizer;
  std::string job;
  SnapshotId snapshot = 0;
  absl::Duration open_patience;
  absl::Duration silence;
  absl::optional<StepNumber> at_step;
  bool is_model = false;
};

SnapshotId NewSnapshotId() {
  std::random_device random;
  const SnapshotId id = SnapshotId{random()} << 32 | random();
  return id == 0 ? 1 : id;
}

absl::Status EndedEarly() { return absl::UnavailableError("the call has ended early"); }

// What a call waits for: messages, and its end. Called one after the other.
class Awaited {
 public:
  virtual ~Awaited() = default;
  // Whether it has all that it waits for.
  virtual bool Take(const v1::SaveShardResponse& response) = 0;
  virtual void End(const absl::Status& status) = 0;
};

class AwaitedPrepared final : public Awaited {
 public:
  explicit AwaitedPrepared(std::function<void(absl::Status)> done) : done_(std::move(done)) {}
  bool Take(const v1::SaveShardResponse& response) override {
    if (response.has_prepared()) done_(absl::OkStatus());
    return response.has_prepared();
  }
  void End(const absl::Status& status) override { done_(status.ok() ? EndedEarly() : status); }

 private:
  const std::function<void(absl::Status)> done_;
};

class AwaitedOpened final : public Awaited {
 public:
  explicit AwaitedOpened(std::function<void(absl::StatusOr<SnapshotMoment>)> done)
      : done_(std::move(done)) {}
  bool Take(const v1::SaveShardResponse& response) override {
    const v1::ShardOpened& opened = response.opened();
    if (response.has_opened()) {
      done_(SnapshotMoment{opened.generation(), opened.step(), opened.skipped()});
    }
    return response.has_opened();
  }
  void End(const absl::Status& status) override { done_(status.ok() ? EndedEarly() : status); }

 private:
  const std::function<void(absl::StatusOr<SnapshotMoment>)> done_;
};

class AwaitedWritten final : public Awaited {
 public:
  AwaitedWritten(std::function<void(int64_t, int64_t)> progress,
                 std::function<void(absl::StatusOr<WrittenShard>)> done)
      : progress_(std::move(progress)), done_(std::move(done)) {}

  bool Take(const v1::SaveShardResponse& response) override {
    if (response.has_writing()) {
      progress_(response.writing().bytes(), response.writing().total_bytes());
    }
    const v1::ShardWritten& piece = response.written();
    if (part_.size() + description_.size() + piece.ByteSizeLong() > kMostTextBytes) {
      is_too_long_ = true;
    } else {
      part_ += piece.part_json();
      description_ += piece.description_json();
    }
    return false;  // the end says whether it was all
  }

  void End(const absl::Status& status) override { done_(status.ok() ? Written() : status); }

 private:
  absl::StatusOr<WrittenShard> Written() const {
    if (is_too_long_) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("it says more than %d bytes of what it has written", kMostTextBytes));
    }
    WrittenShard written;
    auto part = ParseOwnerPart(part_);
    if (!part.ok()) return errors::WithContext(part.status(), "what it says of its part");
    written.part = *std::move(part);
    progress_(written.part.file.bytes, written.part.file.bytes);
    if (description_.empty()) return written;
    auto description = ParseDescription(description_);
    if (!description.ok()) {
      return errors::WithContext(description.status(), "what it says of the optimizer");
    }
    written.description = *std::move(description);
    return written;
  }

  const std::function<void(int64_t, int64_t)> progress_;
  const std::function<void(absl::StatusOr<WrittenShard>)> done_;
  std::string part_;
  std::string description_;
  bool is_too_long_ = false;
};

class AwaitedModelShare final : public Awaited {
 public:
  AwaitedModelShare(std::function<void(int64_t, int64_t)> progress,
                    std::function<void(absl::StatusOr<int64_t>)> done)
      : progress_(std::move(progress)), done_(std::move(done)) {}

  bool Take(const v1::SaveShardResponse& response) override {
    if (response.has_writing()) {
      progress_(response.writing().bytes(), response.writing().total_bytes());
    }
    if (response.has_model_written()) bytes_ = response.model_written().bytes();
    return false;  // the end says whether it was all
  }

  void End(const absl::Status& status) override {
    if (!status.ok()) return done_(status);
    if (!bytes_.has_value()) return done_(EndedEarly());
    progress_(*bytes_, *bytes_);
    done_(*bytes_);
  }

 private:
  const std::function<void(int64_t, int64_t)> progress_;
  const std::function<void(absl::StatusOr<int64_t>)> done_;
  absl::optional<int64_t> bytes_;
};

// One call of SaveShard. Keeps itself until gRPC is done with it.
class SaveCall final : public grpc::ClientBidiReactor<v1::SaveShardRequest, v1::SaveShardResponse> {
 public:
  explicit SaveCall(Target target)
      : target_(std::move(target)), stub_(v1::ShardSaving::NewStub(target_.channel)) {}

  void Start(const std::shared_ptr<SaveCall>& self, std::unique_ptr<Awaited> awaited) {
    {
      absl::MutexLock lock(&mutex_);
      self_ = self;
    }
    stub_->async()->SaveShard(&context_, this);
    AddHold();  // until nothing more can be sent
    StartRead(&response_);
    StartCall();
    v1::SaveShardRequest request;
    v1::PrepareShard& prepare = *request.mutable_prepare();
    prepare.set_optimizer(target_.optimizer);
    prepare.set_rank(target_.rank);
    prepare.set_job(target_.job);
    prepare.set_snapshot_id(target_.snapshot);
    prepare.set_silence_ms(absl::ToInt64Milliseconds(target_.silence));
    if (target_.at_step.has_value()) prepare.set_at_step(*target_.at_step);
    prepare.set_model(target_.is_model);
    Ask(std::move(request), std::move(awaited));
  }

  // Where the call has ended already, that is the answer.
  void Ask(v1::SaveShardRequest request, std::unique_ptr<Awaited> awaited) {
    absl::optional<absl::Status> end;
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) {
        end = end_;
      } else {
        awaited_ = std::exchange(awaited, nullptr);
      }
    }
    if (end.has_value()) return awaited->End(*end);
    Tell(std::move(request));
  }

  // Nobody answers it.
  void Tell(v1::SaveShardRequest request) {
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) return;
      requests_.push_back(std::move(request));
      if (requests_.size() > 1) return;
      AddHold();
    }
    StartWrite(&requests_.front());
    RemoveHold();
  }

  const Target& target() const { return target_; }

  void Cancel() { context_.TryCancel(); }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      requests_.pop_front();
      if (!ok || requests_.empty()) return;
    }
    StartWrite(&requests_.front());
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        absl::MutexLock lock(&mutex_);
        closed_ = true;
      }
      RemoveHold();  // OnDone follows, and says why
      return;
    }
    std::unique_ptr<Awaited> awaited;
    {
      absl::MutexLock lock(&mutex_);
      awaited = std::move(awaited_);
    }
    if (awaited != nullptr && !awaited->Take(response_)) {
      absl::MutexLock lock(&mutex_);
      awaited_ = std::move(awaited);
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    const absl::Status end = status.ok() ? absl::OkStatus() : ErrorOf(status);
    std::unique_ptr<Awaited> awaited;
    std::shared_ptr<SaveCall> self;
    {
      absl::MutexLock lock(&mutex_);
      end_ = end;
      awaited = std::move(awaited_);
      self.swap(self_);
    }
    if (awaited != nullptr) awaited->End(end);
  }

 private:
  absl::Status ErrorOf(const grpc::Status& status) const {
    const absl::Status error = FromGrpc(status);
    const std::string who = absl::StrCat("the shard owner at ", target_.address);
    if (absl::IsUnavailable(error) && IsTransportError(error)) {
      return errors::PeerLost(target_.rank, absl::StrCat(who, ": ", error.message()));
    }
    return errors::WithContext(error, who);
  }

  const Target target_;
  const std::unique_ptr<v1::ShardSaving::Stub> stub_;
  grpc::ClientContext context_;
  v1::SaveShardResponse response_;  // being read
  // Whoever has made it not empty writes the first one, and nobody else removes that.
  std::deque<v1::SaveShardRequest> requests_;
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more can be sent
  absl::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Awaited> awaited_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<SaveCall> self_ ABSL_GUARDED_BY(mutex_);
};

class RpcOwnerSave final : public OwnerSave {
 public:
  explicit RpcOwnerSave(Target target) : call_(std::make_shared<SaveCall>(std::move(target))) {}
  ~RpcOwnerSave() override { call_->Cancel(); }

  void Prepare(std::function<void(absl::Status)> done) override {
    call_->Start(call_, std::make_unique<AwaitedPrepared>(std::move(done)));
  }

  void Open(std::function<void(absl::StatusOr<SnapshotMoment>)> done) override {
    v1::SaveShardRequest request;
    request.mutable_open()->set_patience_ms(
        absl::ToInt64Milliseconds(call_->target().open_patience));
    call_->Ask(std::move(request), std::make_unique<AwaitedOpened>(std::move(done)));
  }

  void OpenedElsewhere(const SnapshotMoment& moment) override {
    v1::SaveShardRequest request;
    request.mutable_opened_elsewhere()->set_step(moment.step);
    request.mutable_opened_elsewhere()->set_generation(moment.generation);
    request.mutable_opened_elsewhere()->set_skipped(moment.skipped);
    call_->Tell(std::move(request));
  }

  void Write(const std::string& directory, const std::string& name,
             std::function<void(int64_t, int64_t)> progress,
             std::function<void(absl::StatusOr<WrittenShard>)> done) override {
    v1::SaveShardRequest request;
    request.mutable_write()->set_directory(directory);
    request.mutable_write()->set_name(name);
    call_->Ask(std::move(request),
               std::make_unique<AwaitedWritten>(std::move(progress), std::move(done)));
  }

  void WriteModel(const ModelShare& share, std::function<void(int64_t, int64_t)> progress,
                  std::function<void(absl::StatusOr<int64_t>)> done) override {
    v1::SaveShardRequest request;
    v1::WriteModelShare& write = *request.mutable_write_model();
    write.set_directory(share.directory);
    write.set_name(share.name);
    write.set_shard_bytes(share.shard_bytes);
    write.set_layout_checksum(share.layout_checksum);
    call_->Ask(std::move(request),
               std::make_unique<AwaitedModelShare>(std::move(progress), std::move(done)));
  }

  void Cancel() override { call_->Cancel(); }

 private:
  const std::shared_ptr<SaveCall> call_;
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<OwnerSave>>> SavingOwnersRpc::Connect(
    const std::string& optimizer, absl::optional<StepNumber> at_step, bool is_model) {
  Target target;
  target.optimizer = optimizer;
  target.job = coordinator_.options().job;
  target.snapshot = NewSnapshotId();
  target.open_patience = open_patience_;
  target.silence = silence_;
  target.at_step = at_step;
  target.is_model = is_model;
  std::vector<std::unique_ptr<OwnerSave>> owners;
  int world_size = 1;
  while (static_cast<int>(owners.size()) < world_size) {
    const auto page = coordinator_.GetOwners(optimizer, static_cast<Rank>(owners.size()));
    if (!page.ok()) return page.status();
    world_size = page->world_size;
    for (const std::string& address : page->addresses) {
      target.rank = static_cast<Rank>(owners.size());
      target.address = address;
      if (address.empty()) {
        return absl::FailedPreconditionError(
            absl::StrFormat("the shard owner of rank %d has no address", target.rank));
      }
      target.channel = channels_.To(address);
      owners.push_back(std::make_unique<RpcOwnerSave>(target));
    }
  }
  return owners;
}

absl::StatusOr<std::vector<SafetensorsTensor>> SavingOwnersRpc::ModelTensors(
    const std::string& optimizer, Generation generation) {
  const auto plan = coordinator_.GetPlan(optimizer);
  if (!plan.ok()) return plan.status();
  if (plan->ready->plan.generation != generation) {
    return absl::AbortedError(
        absl::StrFormat("the snapshots are of generation %d, and the ranks follow generation %d by "
                        "now: export again",
                        generation, plan->ready->plan.generation));
  }
  const ParameterSpace& space = plan->spec.space;
  std::vector<SafetensorsTensor> tensors;
  for (int p = 0; p < space.parameter_count(); ++p) {
    const ParameterSpec& parameter = space.parameter(p);
    tensors.push_back(ModelTensor(parameter.name,
                                  TypeOf(ArrayFormatOf(parameter.dtype), ArrayPart::kValues),
                                  parameter.shape));
  }
  return tensors;
}

Generation SavingOwnersRpc::generation(const std::string& optimizer) {
  const auto page = coordinator_.GetOwners(optimizer, 0);
  return page.ok() ? page->generation : 0;
}

}  // namespace optshard

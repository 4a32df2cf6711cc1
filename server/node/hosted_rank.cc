#include "server/node/hosted_rank.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/errors.h"
#include "server/update/hyperparameter_bytes.h"
#include "server/update/numa_nodes.h"
#include "server/update/update_rule.h"

namespace optshard {
namespace {

// A trainer that goes wild may spoil its bell. Then the thread still looks this often.
constexpr absl::Duration kLook = absl::Seconds(1);
// Between two refusals, so that ranks that all refuse do not do so without end. The first comes at
// once.
constexpr absl::Duration kFirstRefusalPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestRefusalPause = absl::Milliseconds(100);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);

constexpr float kNoElements = 0;

absl::Time Now() { return Clock::Monotonic().Now(); }

}  // namespace

HostedRank::HostedRank(Options options)
    : options_(std::move(options)), rank_(options_.request.rank) {
  // On the memory node of the thread that has just touched the replica's memory first.
  const NumaNodes& nodes = NumaNodes::OfThisMachine();
  thread_ = std::thread([this, &nodes, node = nodes.Here()] {
    nodes.KeepThisThreadOn(node);
    Run();
  });
}

HostedRank::~HostedRank() {
  Drain();
  AbortPlane(ShuttingDown());
  thread_.join();
}

absl::Status HostedRank::ShuttingDown() {
  return absl::UnavailableError("the shard server is shutting down; nothing has changed");
}

std::string HostedRank::Name() const {
  return absl::StrCat("rank ", rank_, " of optimizer \"", options_.request.optimizer, "\"");
}

// --- Any thread.

void HostedRank::Wake() {
  control_.Ring();
  if (attachment_ != nullptr) attachment_->doorbell.WakeServer();
}

bool HostedRank::Ready() const {
  absl::MutexLock lock(&mutex_);
  return phase_ == Phase::kServing && !draining_ && attachment_ != nullptr && !attachment_->ended &&
         owner_->failure().ok();
}

bool HostedRank::Ended() const {
  absl::MutexLock lock(&mutex_);
  return phase_ == Phase::kEnded;
}

void HostedRank::Drain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  Wake();
}

bool HostedRank::WaitEnded(absl::Time deadline) const {
  absl::MutexLock lock(&mutex_);
  const auto ended = [this] {
    mutex_.AssertReaderHeld();
    return phase_ == Phase::kEnded;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&ended), deadline - Now());
}

void HostedRank::AbortPlane(const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  if (phase_ == Phase::kServing) owner_->AbortPlane(reason);
}

// --- The rank's thread.

void HostedRank::Run() {
  const absl::Status started = StartOwner();
  if (started.ok()) {
    options_.show(&owner_->view());
    {
      absl::MutexLock lock(&mutex_);
      phase_ = Phase::kServing;
    }
    Serve();
    // In good order; where others do not leave too, no longer than this.
    owner_->Stop(kLeaveTimeout).IgnoreError();
    options_.show(nullptr);
  }
  absl::MutexLock lock(&mutex_);
  start_status_ = started;
  phase_ = Phase::kEnded;
}

absl::Status HostedRank::StartOwner() {
  const AttachRequest& request = options_.request;
  ShardOwner::Options owner;
  owner.job = request.job;
  owner.optimizer = request.optimizer;
  owner.rank = rank_;
  owner.world_size = request.world_size;
  owner.space = request.space;
  owner.rule = request.rule;
  for (const std::string& group : request.hyperparameters) {
    absl::StatusOr<std::vector<Hyperparameters>> values = DecodeHyperparameters(group);
    if (!values.ok()) return values.status();
    owner.hyperparameters.push_back(values->front());
  }
  owner.gradient_mode = request.gradient_mode == NameOf(GradientMode::kAveraged)
                            ? GradientMode::kAveraged
                            : GradientMode::kReduce;
  owner.policy = request.policy;
  owner.buckets = request.buckets;
  owner.threads = request.threads;
  owner.node = request.node;
  owner.owner_address = options_.owner_address;
  owner.coordinator = options_.coordinator;
  owner.join_timeout = request.join_timeout;
  owner.plane_factory = options_.plane_factory;
  absl::StatusOr<const UpdateRule*> rule = RuleRegistry::Find(request.rule);
  if (!rule.ok()) return rule.status();
  for (const Hyperparameters& group : owner.hyperparameters) {
    absl::StatusOr<Hyperparameters> values = (*rule)->Validate(group);
    if (!values.ok()) return values.status();
    constructed_.push_back(*std::move(values));
  }
  absl::StatusOr<std::unique_ptr<ShardOwner>> started = ShardOwner::Start(std::move(owner));
  if (!started.ok()) return started.status();
  owner_ = *std::move(started);

  const absl::Span<const ReplicaRegion> shared = owner_->shared_replica();
  regions_ = shared.empty() ? options_.replica->regions()
                            : std::vector<ReplicaRegion>(shared.begin(), shared.end());
  if (!options_.replica->has_parameters() && shared.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        Name(), " shares another rank's parameters, but the data plane shares no memory"));
  }
  const ParameterSpace& space = request.space;
  for (int p = 0; p < space.parameter_count(); ++p) {
    const MemoryLayout::Place& place = options_.layout.place(p);
    ReplicaTensor tensor;
    tensor.gradient = &kNoElements;
    if (space.parameter(p).elements() > 0) {
      tensor.parameter = regions_[place.region].parameters + place.offset_elements;
      tensor.gradient = regions_[place.region].gradients + place.offset_elements;
    }
    all_tensors_.push_back(tensor);
  }
  tensors_ = all_tensors_;
  return absl::OkStatus();
}

void HostedRank::Serve() {
  while (true) {
    std::shared_ptr<Attachment> trainer;
    {
      absl::MutexLock lock(&mutex_);
      trainer = attachment_;
    }
    if (draining_) {
      if (trainer != nullptr && trainer->doorbell.WaitForRequest(absl::InfinitePast())) {
        if (!HandleRequest(*trainer)) return;
        continue;
      }
      if (!options_.rounds->Enter(rank_)) return;
      // Others are in this round; they must not wait for one who will not come.
      owner_->RefuseNextStep("its shard server is shutting down").IgnoreError();
    } else if (trainer != nullptr) {
      ServeTrainer(*trainer);
      absl::MutexLock lock(&mutex_);
      if (attachment_ == trainer && trainer->ended) attachment_ = nullptr;
    } else {
      ServeNobody();
    }
  }
}

void HostedRank::ServeTrainer(Attachment& trainer) {
  refusal_pause_ = absl::ZeroDuration();
  while (!draining_) {
    // What it asked before it ended is done all the same.
    const bool ended = trainer.ended;
    if (trainer.doorbell.WaitForRequest(ended ? absl::InfinitePast() : Now() + kLook)) {
      if (!HandleRequest(trainer)) return;
    } else if (ended) {
      return;
    }
  }
}

// Whether there may be another one.
bool HostedRank::HandleRequest(Attachment& trainer) {
  const absl::Status valid = TakeRequest(trainer);
  DoorbellReply reply;
  // As if it had never been asked.
  if (absl::IsCancelled(valid)) {
    reply.status = valid;
    trainer.doorbell.Answer(reply);
    return true;
  }
  if (!options_.rounds->Enter(rank_)) {
    reply.status = ShuttingDown();
    trainer.doorbell.Answer(reply);
    return false;
  }
  {
    absl::MutexLock lock(&mutex_);
    busy_ = true;
  }
  const bool syncs = valid.ok() && request_.kind == DoorbellRequest::Kind::kSync;
  if (!valid.ok()) {
    // The others must not wait for it: for them it is as if there were no trainer.
    reply.status = owner_->RefuseNextStep(
        absl::StrCat("what its trainer asked was refused: ", valid.message()));
    if (reply.status.ok()) reply.status = valid;
  } else if (syncs) {
    reply.status = owner_->SyncParameters(all_tensors_, regions_, request_.timeout);
  } else {
    const absl::StatusOr<StepInfo> info = owner_->Step(InputOf(request_));
    reply.status = info.status();
    if (info.ok()) {
      reply.step = info->step;
      reply.skipped = info->skipped;
      reply.prepare = info->prepare;
      reply.commit = info->commit;
      reply.apply = info->apply;
    } else if (errors::IsTrainerGone(info.status()) && draining_) {
      reply.status = ShuttingDown();
    }
  }
  reply.broken = !reply.status.ok() && !owner_->failure().ok();
  Finish(reply, syncs);
  trainer.doorbell.Answer(reply);
  return true;
}

absl::Status HostedRank::TakeRequest(Attachment& trainer) {
  if (std::exchange(asking_, trainer.incarnation) != trainer.incarnation) {
    // Versions of hyperparameters are each trainer's own.
    request_ = DoorbellRequest();
    hyperparameter_version_ = 0;
  }
  absl::Status taken = trainer.doorbell.Take(&request_);
  if (!taken.ok() || request_.kind == DoorbellRequest::Kind::kSync) return taken;
  return UseHyperparameters();
}

// Validated here already: the shard owner of a rank that gets some that are out of range breaks,
// and with it the job.
absl::Status HostedRank::UseHyperparameters() {
  if (request_.hyperparameter_version == hyperparameter_version_ && hyperparameter_version_ != 0) {
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<Hyperparameters>> given =
      DecodeHyperparameters(request_.hyperparameters);
  if (!given.ok()) return given.status();
  if (given->size() != constructed_.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("hyperparameters of %d groups were given, expected those of %d",
                        given->size(), constructed_.size()));
  }
  absl::StatusOr<const UpdateRule*> rule = RuleRegistry::Find(options_.request.rule);
  if (!rule.ok()) return rule.status();
  for (size_t g = 0; g < given->size(); ++g) {
    absl::StatusOr<Hyperparameters> values = (*rule)->Validate((*given)[g]);
    absl::Status changeable = values.status();
    if (values.ok()) changeable = (*rule)->ValidateChange(constructed_[g], *values);
    if (!changeable.ok()) return errors::WithContext(changeable, absl::StrCat("param group ", g));
  }
  hyperparameters_ = *std::move(given);
  hyperparameter_version_ = request_.hyperparameter_version;
  return absl::OkStatus();
}

StepInput HostedRank::InputOf(const DoorbellRequest& request) {
  for (size_t p = 0; p < tensors_.size(); ++p) {
    tensors_[p].gradient = request.has_gradient[p] ? all_tensors_[p].gradient : nullptr;
  }
  StepInput input;
  input.replica = tensors_;
  input.regions = regions_;
  input.hyperparameters = hyperparameters_;
  input.timeout = request.timeout;
  return input;
}

void HostedRank::Finish(const DoorbellReply& reply, bool synced) {
  absl::MutexLock lock(&mutex_);
  busy_ = false;
  if (!reply.status.ok()) return;
  if (synced) {
    synced_ = true;
    return;
  }
  synced_ = true;
  finished_ = reply.step;
  if (!request_.has_blob) return;
  blob_.swap(request_.blob);
  blob_step_ = reply.step;
}

// Nobody is there to ask for anything. The other ranks are told when they come to their next step.
void HostedRank::ServeNobody() {
  const uint32_t heard = std::exchange(heard_, control_.Count());
  bool synced = false;
  std::string how;
  {
    absl::MutexLock lock(&mutex_);
    if (attachment_ != nullptr || draining_) return;
    synced = synced_;
    how = how_gone_;
  }
  const bool never_had_one = how.empty();
  if (never_had_one || !owner_->failure().ok() || options_.request.world_size == 1 ||
      (!synced && rank_ == 0)) {
    control_.Wait(heard, Now() + kLook);
    return;
  }
  if (!synced) {
    // The first values are rank 0's: this needs no trainer of its own.
    if (!options_.rounds->Enter(rank_)) return;
    {
      absl::MutexLock lock(&mutex_);
      busy_ = true;
    }
    DoorbellReply reply;
    reply.status = owner_->SyncParameters(all_tensors_, regions_, absl::Hours(24));
    Finish(reply, true);
    return;
  }
  if (control_.Wait(heard, Now() + refusal_pause_)) return;
  refusal_pause_ = std::clamp(2 * refusal_pause_, kFirstRefusalPause, kLongestRefusalPause);
  if (!options_.rounds->Enter(rank_)) return;
  owner_->RefuseNextStep(how).IgnoreError();
}

}  // namespace optshard

#include "server/shard/shard_owner.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/errors.h"
#include "common/log.h"
#include "common/memory_layout.h"
#include "server/shard/engine/step_engine.h"
#include "server/shard/inspection/live_shard_view.h"
#include "server/shard/inspection/step_board.h"
#include "server/shard/inspection/timeline_ring.h"
#include "server/shard/plane_guard.h"
#include "server/shard/shard_owner_options.h"
#include "server/shard/state/shard_ledger.h"
#include "server/shard/state/shard_store.h"
#include "server/update/group_update.h"

namespace optshard {
class ShardOwner::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)) {}

  ~Impl() {
    // The plane uses the session's rendezvous: it goes first, and no callback finds it then.
    guard_->Detach();
    engine_.reset();
    plane_.reset();
  }

  absl::Status Start();
  absl::StatusOr<StepInfo> Step(const StepInput& input);
  absl::Status RefuseNextStep(absl::string_view how_known);
  // A call of all ranks between steps.
  template <typename Call>
  absl::Status BetweenSteps(const Call& call) {
    absl::Status usable = CheckNothingLost();
    if (!usable.ok()) return usable;
    const StepEngine::Result result = call(*engine_);
    return result.status.ok() || result.refused ? result.status : Break(result);
  }
  absl::Status Stop(absl::Duration timeout);

  void AbortPlane(const absl::Status& reason) { guard_->Abort(reason); }
  absl::Status failure() const { return board_->failure(); }
  absl::Status lost() const { return guard_->reason(); }
  StepProgress progress() const { return engine_->progress(); }
  absl::StatusOr<ShardState*> state() {
    absl::Status usable = CheckUsable();
    if (!usable.ok()) return usable;
    return state_.get();
  }
  const Plan& plan() const { return plan_; }
  const std::vector<std::string>& owner_addresses() const { return owner_addresses_; }
  // Null where the plane reaches no peer's memory.
  const PeerReplicas* peer_replicas() const {
    return plane_ == nullptr ? nullptr : plane_->peer_replicas();
  }
  absl::Span<const ReplicaRegion> shared_replica() const {
    if (peer_replicas() == nullptr) return {};
    return peer_replicas()->regions[options_.rank];
  }
  std::shared_ptr<const void> shared_replica_memory() const {
    return peer_replicas() == nullptr ? nullptr : peer_replicas()->memory;
  }
  const ShardView& view() const { return *view_; }

 private:
  absl::Status JoinJob(absl::Time deadline);
  absl::Status Allocate();
  absl::Status ConnectPlane(absl::Time deadline);
  absl::Status StartEngine();
  absl::Status CheckUsable() const;
  absl::Status CheckNothingLost();
  void PublishProgress(StepOutcome outcome);
  absl::Status AttributeFailure(StepOutcome outcome, const absl::Status& observed);
  absl::Status Break(const StepEngine::Result& result);
  LogContext MakeLogContext() const;

  Options options_;
  std::vector<GroupUpdate> groups_;  // by param group
  // Outlives whatever the session's thread may call.
  const std::shared_ptr<PlaneGuard> guard_ = std::make_shared<PlaneGuard>();
  std::unique_ptr<MemberSession> session_;
  Plan plan_;
  std::vector<std::string> owner_addresses_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<MemoryLayout> layout_;
  std::unique_ptr<ShardStore> store_;
  std::unique_ptr<ShardState> state_;
  std::unique_ptr<StepBoard> board_;
  std::unique_ptr<TimelineRing> timeline_;
  std::unique_ptr<LiveShardView> view_;
  std::unique_ptr<DataPlane> plane_;
  std::unique_ptr<StepEngine> engine_;
  bool resumes_ = false;  // goes on from state that the memory held ...
  StepProgress resumed_;  // ... after this
  bool stopped_ = false;
};

absl::Status ShardOwner::Impl::Start() {
  absl::Status valid = CheckOwnerOptions(options_);
  if (!valid.ok()) return valid;
  absl::StatusOr<std::vector<GroupUpdate>> groups =
      ValidateGroups(options_.spec, options_.trainer_updates);
  if (!groups.ok()) return groups.status();
  groups_ = *std::move(groups);
  board_ = std::make_unique<StepBoard>(HyperparametersOf(groups_));
  timeline_ = std::make_unique<TimelineRing>(options_.timeline_steps, *options_.clock);

  const absl::Time deadline = options_.clock->Now() + options_.join_timeout;
  absl::Status joined = JoinJob(deadline);
  if (!joined.ok()) return joined;
  layout_ = std::make_unique<MemoryLayout>(options_.spec.space);
  absl::Status connected = ConnectPlane(deadline);
  if (!connected.ok()) return connected;
  absl::Status allocated = Allocate();
  if (!allocated.ok()) return allocated;
  return StartEngine();
}

absl::Status ShardOwner::Impl::JoinJob(absl::Time deadline) {
  JoinRequest request = MakeJoinRequest(options_);
  if (options_.memory.has_value()) request.resumes = ShardLedger::Read(options_.memory->ledger);
  absl::StatusOr<std::unique_ptr<MemberSession>> session =
      options_.coordinator->Join(request, deadline, options_.joining);
  if (!session.ok()) return session.status();
  session_ = std::move(*session);
  session_->OnFailure([guard = guard_, told = options_.on_lost](const absl::Status& failure) {
    guard->Abort(failure);
    if (told) told();
  });
  absl::StatusOr<MemberEvent> event = session_->WaitForPlan(deadline);
  if (!event.ok()) {
    // The rank becomes free at once for another attempt.
    session_->Leave(options_.clock->Now() + options_.attribution_timeout).IgnoreError();
    return event.status();
  }
  const PlanReady& ready = *event->ready;
  plan_ = ready.plan;
  owner_addresses_ = ready.owner_address;
  resumes_ = request.resumes.has_value();
  resumed_ = {ready.finished, StepOutcome::kIdle, ready.skipped};
  if (resumes_ && resumed_.finished != AppliedStep(request.resumes->progress)) {
    return absl::DataLossError(
        absl::StrFormat("the coordinator says that the job goes on after step %d, but rank %d has "
                        "the state of step "
                        "%d; run the same version of optshard everywhere",
                        resumed_.finished, options_.rank, AppliedStep(request.resumes->progress)));
  }
  session_->SetProgress(resumed_);
  return CheckPlan(plan_, options_.spec);
}

absl::Status ShardOwner::Impl::ConnectPlane(absl::Time deadline) {
  if (options_.spec.world_size == 1) return absl::OkStatus();
  PlaneRequest request;
  request.rank = options_.rank;
  request.world_size = options_.spec.world_size;
  request.generation = plan_.generation;
  request.tree = plan_.tree;
  request.layout = layout_.get();
  request.rendezvous = &session_->rendezvous();
  request.deadline = deadline;
  absl::StatusOr<std::unique_ptr<DataPlane>> plane = options_.plane_factory(request);
  if (!plane.ok()) {
    return errors::WithContext(AttributeFailure(StepOutcome::kNotApplied, plane.status()),
                               "connecting the data plane");
  }
  plane_ = std::move(*plane);
  guard_->Attach(plane_.get());
  return absl::OkStatus();
}

absl::Status ShardOwner::Impl::Allocate() {
  buckets_ = MakeBuckets(*layout_, plan_, options_.spec.buckets);

  LiveShardView::Options view;
  ShardStore::Options store;
  store.TakeSlotsOf(groups_);
  store.space = &options_.spec.space;
  store.buckets = &buckets_;
  store.state = options_.spec.state;
  store.rank = options_.rank;
  store.keep_reduced_gradients = options_.spec.gradient_mode == GradientMode::kReduce &&
                                 options_.spec.world_size > 1 && peer_replicas() == nullptr;
  absl::StatusOr<std::unique_ptr<ShardStore>> created = ShardStore::Create(store, options_.memory);
  if (!created.ok()) return created.status();
  store_ = std::move(*created);
  store_->ledger().Begin(plan_.generation, resumed_);
  const std::vector<Slice>& slices = plan_.partition.slices[options_.rank];
  state_ = std::make_unique<ShardState>(ShardState::Options{store.space, &groups_, store.state,
                                                            options_.rank, &slices, store_.get()});

  view.member = session_->id();
  view.space = &options_.spec.space;
  view.plan = &plan_;
  view.groups = &groups_;
  view.gradient_mode = options_.spec.gradient_mode;
  view.state = options_.spec.state;
  view.bucket_count = static_cast<int>(store_->own_buckets().size());
  view.store = store_.get();
  view.board = board_.get();
  view.timeline = timeline_.get();
  view_ = std::make_unique<LiveShardView>(std::move(view));
  return absl::OkStatus();
}

absl::Status ShardOwner::Impl::StartEngine() {
  StepEngine::Options engine;
  engine.rank = options_.rank;
  engine.plan = &plan_;
  engine.space = &options_.spec.space;
  engine.layout = layout_.get();
  engine.buckets = &buckets_;
  engine.gradient_mode = options_.spec.gradient_mode;
  engine.state = options_.spec.state;
  engine.groups = &groups_;
  engine.driver = options_.driver;
  engine.threads = options_.threads > 0 ? options_.threads : ThreadsOf(plan_.tree, options_.rank);
  engine.plane = plane_.get();
  engine.store = store_.get();
  engine.timeline = timeline_.get();
  engine.clock = options_.clock;
  engine.incarnation = session_->id().incarnation;
  engine.has_values = resumes_;
  absl::StatusOr<std::unique_ptr<StepEngine>> created = StepEngine::Create(engine);
  if (!created.ok()) return created.status();
  engine_ = std::move(*created);
  PublishProgress(StepOutcome::kIdle);
  Log(LogLevel::kInfo, MakeLogContext(), "owns %d elements in %d buckets, %d bytes of state",
      view_->Describe().owned_elements, store_->own_buckets().size(), store_->state_bytes());
  return absl::OkStatus();
}

absl::StatusOr<StepInfo> ShardOwner::Impl::Step(const StepInput& input) {
  absl::Status usable = CheckNothingLost();
  if (!usable.ok()) return usable;
  PublishProgress(StepOutcome::kInStep);
  const StepEngine::Result result = engine_->Step(input);
  if (result.refused) {
    PublishProgress(StepOutcome::kIdle);
    return result.status;
  }
  if (!result.status.ok()) return Break(result);
  board_->SetHyperparameters(engine_->record().hyperparameters);
  PublishProgress(StepOutcome::kIdle);
  return result.info;
}

absl::Status ShardOwner::Impl::RefuseNextStep(absl::string_view how_known) {
  absl::Status usable = CheckNothingLost();
  if (!usable.ok()) return usable;
  const StepEngine::Result result =
      engine_->Refuse(errors::TrainerGone({options_.rank}, how_known));
  return result.refused ? absl::OkStatus() : Break(result);
}

absl::Status ShardOwner::Impl::Stop(absl::Duration timeout) {
  if (stopped_) return absl::OkStatus();
  stopped_ = true;
  const absl::Time deadline = options_.clock->Now() + timeout;
  absl::Status closed;
  if (plane_ != nullptr && failure().ok()) closed = plane_->Close(deadline);
  guard_->Detach();
  // After a failure, too: the others know of it, and this rank's end is no further one.
  absl::Status left = session_->Leave(deadline);
  closed.Update(left);
  return closed;
}

absl::Status ShardOwner::Impl::CheckUsable() const {
  absl::Status failed = failure();
  if (!failed.ok()) return failed;
  if (stopped_) return absl::FailedPreconditionError("the shard owner has been stopped");
  return absl::OkStatus();
}

// Also that no rank is lost, as far as this one has heard: it is known before anything of a step
// was sent, so nobody can have applied it.
absl::Status ShardOwner::Impl::CheckNothingLost() {
  absl::Status usable = CheckUsable();
  if (!usable.ok()) return usable;
  StepEngine::Result lost;
  lost.status = guard_->reason();
  lost.outcome = StepOutcome::kNotApplied;
  return lost.status.ok() ? absl::OkStatus() : Break(lost);
}

void ShardOwner::Impl::PublishProgress(StepOutcome outcome) {
  StepProgress progress = engine_->progress();
  progress.outcome = outcome;
  board_->SetProgress(progress);
  session_->SetProgress(progress);
}

// Asks the coordinator which rank the job lost. The first error seen may name a rank that only hung
// up because of the loss (docs/decisions/0005).
absl::Status ShardOwner::Impl::AttributeFailure(StepOutcome outcome, const absl::Status& observed) {
  const std::vector<Rank> blamed = errors::RanksOf(observed);
  StepProgress progress = engine_ == nullptr ? resumed_ : engine_->progress();
  progress.outcome = outcome;
  return session_->ReportFailure(progress, blamed.empty() ? -1 : blamed.front(), observed,
                                 options_.clock->Now() + options_.attribution_timeout);
}

// The owner's failure from now on.
absl::Status ShardOwner::Impl::Break(const StepEngine::Result& result) {
  const StepNumber finished = engine_->finished();
  // Before the failure is attributed, which may take as long as a lease: a torn state is not given
  // out meanwhile.
  PublishProgress(result.outcome);
  const absl::Status cause =
      result.plane_failed ? AttributeFailure(result.outcome, result.status) : result.status;
  absl::Status failure = cause;
  if (result.outcome == StepOutcome::kTorn) failure = errors::TornStep(finished + 1, cause);
  if (result.outcome == StepOutcome::kInDoubt || result.outcome == StepOutcome::kApplied) {
    failure = errors::StepInDoubt(finished + 1, cause);
  }
  board_->SetFailure(failure);
  if (result.plane_failed) guard_->Abort(cause);
  // Not louder: the caller is told.
  Log(LogLevel::kInfo, MakeLogContext(), "step %d: %s", finished + 1, failure.ToString());
  return failure;
}

LogContext ShardOwner::Impl::MakeLogContext() const {
  LogContext context;
  context.role = "owner";
  context.job = options_.job;
  context.rank = options_.rank;
  context.generation = plan_.generation;
  if (engine_ != nullptr) context.step = engine_->finished();
  return context;
}

ShardOwner::ShardOwner(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ShardOwner::~ShardOwner() = default;

absl::StatusOr<std::unique_ptr<ShardOwner>> ShardOwner::Start(Options options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  absl::Status started = impl->Start();
  if (!started.ok()) return started;
  return std::unique_ptr<ShardOwner>(new ShardOwner(std::move(impl)));
}

absl::Status ShardOwner::SyncParameters(absl::Span<const ReplicaTensor> replica,
                                        absl::Span<const ReplicaRegion> regions,
                                        absl::Duration timeout) {
  return impl_->BetweenSteps(
      [&](StepEngine& engine) { return engine.SyncParameters(replica, regions, timeout); });
}

absl::Status ShardOwner::VerifyReplicas(absl::Span<const ReplicaTensor> replica,
                                        absl::Span<const ReplicaRegion> regions,
                                        absl::Duration timeout) {
  return impl_->BetweenSteps(
      [&](StepEngine& engine) { return engine.VerifyReplicas(replica, regions, timeout); });
}

absl::StatusOr<StepInfo> ShardOwner::Step(const StepInput& input) { return impl_->Step(input); }

absl::Status ShardOwner::RefuseNextStep(absl::string_view how_known) {
  return impl_->RefuseNextStep(how_known);
}

void ShardOwner::AbortPlane(const absl::Status& reason) { impl_->AbortPlane(reason); }

absl::Status ShardOwner::Stop(absl::Duration timeout) { return impl_->Stop(timeout); }

absl::Status ShardOwner::failure() const { return impl_->failure(); }

absl::Status ShardOwner::lost() const { return impl_->lost(); }

absl::StatusOr<ShardState*> ShardOwner::state() { return impl_->state(); }

StepProgress ShardOwner::progress() const { return impl_->progress(); }

const Plan& ShardOwner::plan() const { return impl_->plan(); }

const std::vector<std::string>& ShardOwner::owner_addresses() const {
  return impl_->owner_addresses();
}

absl::Span<const ReplicaRegion> ShardOwner::shared_replica() const {
  return impl_->shared_replica();
}

std::shared_ptr<const void> ShardOwner::shared_replica_memory() const {
  return impl_->shared_replica_memory();
}

const ShardView& ShardOwner::view() const { return impl_->view(); }

}  // namespace optshard

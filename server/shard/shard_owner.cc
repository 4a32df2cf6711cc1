#include "server/shard/shard_owner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/dataplane/disconnect_reason.h"
#include "common/errors.h"
#include "server/shard/shard_owner_impl.h"
#include "server/shard/shard_owner_options.h"
#include "server/shard/snapshot/snapshot_memory.h"
#include "server/shard/state/shard_ledger.h"
#include "server/update/step_hyperparameters.h"

namespace optshard {
namespace {

// On a device, where the call that waits for it has no timeout of its own, or a short one: a wait
// that ends before the step does breaks the plane.
constexpr absl::Duration kLongestStep = absl::Minutes(10);

}  // namespace

absl::Status ShardOwner::Impl::Start() {
  absl::Status valid = CheckOwnerOptions(options_);
  if (!valid.ok()) return valid;
  absl::StatusOr<std::vector<GroupUpdate>> groups =
      ValidateGroups(options_.spec, options_.trainer_updates);
  if (!groups.ok()) return groups.status();
  groups_ = std::make_shared<const std::vector<GroupUpdate>>(*std::move(groups));
  board_ = std::make_unique<StepBoard>(HyperparametersOf(*groups_));
  timeline_ = std::make_unique<TimelineRing>(options_.timeline_steps, *options_.clock);

  const absl::Time deadline = options_.clock->Now() + options_.join_timeout;
  absl::Status joined = JoinJob(deadline);
  if (!joined.ok()) return joined;
  absl::StatusOr<std::shared_ptr<DataPlane>> plane = ConnectPlane(*shape_, deadline);
  if (!plane.ok()) {
    return errors::WithContext(AttributeFailure(StepOutcome::kNotApplied, plane.status()),
                               "connecting the data plane");
  }
  plane_ = *std::move(plane);
  if (plane_ != nullptr) guard_->Attach(plane_.get());
  absl::Status built = Build();
  if (built.ok()) return built;
  // The others learn why, and do not have to find out that this rank is gone.
  AttributeFailure(StepOutcome::kNotApplied, built).IgnoreError();
  Leave();
  return built;
}

// The rank becomes free at once for another attempt.
void ShardOwner::Impl::Leave() {
  session_->Leave(options_.clock->Now() + options_.attribution_timeout).IgnoreError();
}

absl::Status ShardOwner::Impl::JoinJob(absl::Time deadline) {
  JoinRequest request = MakeJoinRequest(options_);
  Replacing kept = Replacing::kNothing;
  if (!options_.memory.empty()) {
    request.resumes = ShardLedger::Read(options_.memory.back().ledger);
    kept = ShardLedger::ReadReplacing(options_.memory.back().ledger);
  }
  const bool is_torn = request.resumes.has_value() && options_.memory_is_torn;
  if (is_torn) request.resumes->progress = StepProgress();
  // No step is torn by slots that were replaced in part: the parameters are those of the last one.
  const bool lacks_state = request.resumes.has_value() && kept == Replacing::kState;
  if (lacks_state) request.resumes->progress.outcome = StepOutcome::kIdle;
  if (request.resumes.has_value()) {
    request.resumes->prepared_spec_digest = options_.prepared_spec_digest;
    request.resumes->lacks_values = options_.memory_lacks_values;
    request.resumes->is_torn = is_torn;
  }
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
    Leave();
    return event.status();
  }
  const PlanReady& ready = *event->ready;
  if (request.resumes.has_value()) {
    values_ = ready.lacks_values ? ParameterValues::kAddedAreMissing : ParameterValues::kOfTheJob;
  }
  resumed_ = {ready.finished, StepOutcome::kIdle, ready.skipped};
  if (request.resumes.has_value() && resumed_.finished != AppliedStep(request.resumes->progress)) {
    return absl::DataLossError(
        absl::StrFormat("the coordinator says that the job goes on after step %d, but rank %d has "
                        "the state of step "
                        "%d; run the same version of optshard everywhere",
                        resumed_.finished, options_.rank, AppliedStep(request.resumes->progress)));
  }
  session_->SetProgress(resumed_);
  if (is_torn || ready.is_torn) {
    // Also where this rank's own state is whole, or lacks only slots: all ranks refuse each step
    // before they exchange gradients, or those that do would wait for the others.
    resumed_.outcome = StepOutcome::kTorn;
    replacing_ = kept == Replacing::kAll ? kept : Replacing::kNothing;
  } else if (lacks_state) {
    resumed_.outcome = StepOutcome::kTorn;
    replacing_ = kept;
  }
  absl::Status divides = CheckPlan(ready.plan, options_.spec);
  if (divides.ok()) shape_ = GenerationShape::Make(options_.spec, ready.plan);
  return divides;
}

// Those that the owner before this one kept; those of the construction where it kept none.
std::vector<Hyperparameters> ShardOwner::Impl::LastHyperparameters() const {
  std::vector<Hyperparameters> constructed = HyperparametersOf(*groups_);
  if (!options_.last_hyperparameters || resumed_.finished == 0) return constructed;
  const std::vector<Hyperparameters> kept = options_.last_hyperparameters(resumed_.finished);
  std::vector<Hyperparameters> last = constructed;
  std::copy_n(kept.begin(), std::min(kept.size(), last.size()), last.begin());
  absl::StatusOr<std::vector<Hyperparameters>> usable = ValidateForStep(*groups_, last);
  if (usable.ok()) return *std::move(usable);
  Log(LogLevel::kWarning, MakeLogContext(),
      "until the next step it has the hyperparameters of the construction; those that were kept of "
      "step %d cannot be: %s",
      resumed_.finished, usable.status().message());
  return constructed;
}

// Null where there is one rank.
absl::StatusOr<std::shared_ptr<DataPlane>> ShardOwner::Impl::ConnectPlane(
    const GenerationShape& shape, absl::Time deadline) {
  if (options_.spec.world_size == 1) return std::shared_ptr<DataPlane>();
  PlaneRequest request;
  request.rank = options_.rank;
  request.world_size = options_.spec.world_size;
  request.generation = shape.generation();
  request.tree = shape.plan().tree;
  request.layout = &shape.layout();
  request.rendezvous = &session_->rendezvous();
  request.before = peer_replicas();
  request.deadline = deadline;
  absl::StatusOr<std::unique_ptr<DataPlane>> plane = options_.plane_factory(request);
  if (!plane.ok()) return plane.status();
  return std::shared_ptr<DataPlane>(*std::move(plane));
}

absl::Status ShardOwner::Impl::Build() {
  OwnerGeneration::Options options;
  options.shape = shape_;
  options.groups = groups_;
  options.rank = options_.rank;
  options.incarnation = session_->id().incarnation;
  options.plane = plane_;
  options.device = options_.device;
  options.state_on_host = options_.state_on_host;
  if (options_.make_executor) options.make_executor = options_.make_executor;
  options.driver = options_.driver;
  options.threads =
      options_.threads > 0 ? options_.threads : ThreadsOf(shape_->plan().tree, options_.rank);
  options.parameters = parameters_;
  options.blob = options_.blob;
  options.last_hyperparameters = LastHyperparameters();
  board_->SetHyperparameters(options.last_hyperparameters);
  options.budget = options_.budget;
  if (options_.snapshot_memory_bytes.has_value()) {
    absl::StatusOr<std::shared_ptr<SnapshotMemory>> snapshots = SnapshotMemory::Create(
        {*options_.snapshot_memory_bytes, true, options_.rank, options_.budget, options_.device});
    if (!snapshots.ok()) return snapshots.status();
    options.snapshot_memory = *std::move(snapshots);
  }
  options.timeline = timeline_.get();
  options.clock = options_.clock;
  absl::StatusOr<std::unique_ptr<OwnerGeneration>> built =
      OwnerGeneration::First(std::move(options), options_.memory, resumed_, replacing_, values_);
  if (!built.ok()) return built.status();
  generation_ = *std::move(built);

  LiveShardView::Options view;
  view.member = session_->id();
  view.board = board_.get();
  view.timeline = timeline_.get();
  view_ = std::make_unique<LiveShardView>(
      std::move(view),
      LiveShardView::Shown{shape_, groups_, generation_->store(), generation_->snapshots(),
                           generation_->snapshot_memory()});
  PublishProgress(StepOutcome::kIdle);
  const ShardDescription owned = view_->Describe();
  Log(LogLevel::kInfo, MakeLogContext(), "owns %d elements in %d buckets, %d bytes of state",
      owned.owned_elements, owned.bucket_count, owned.state_bytes);
  return absl::OkStatus();
}

absl::StatusOr<StepInfo> ShardOwner::Impl::Step(const StepInput& input) {
  absl::Status usable = CheckNothingLost();
  if (!usable.ok()) return usable;
  // Of a load that was given up.
  generation_->state().DropStaged().IgnoreError();
  PublishProgress(StepOutcome::kInStep);
  const StepEngine::Result result = generation_->engine().Step(input);
  if (result.refused) {
    PublishProgress(StepOutcome::kIdle);
    return result.status;
  }
  if (!result.status.ok()) return Break(result);
  board_->SetHyperparameters(generation_->engine().record().hyperparameters);
  PublishProgress(StepOutcome::kIdle);
  return result.info;
}

absl::Status ShardOwner::Impl::RefuseNextStep(absl::string_view how_known) {
  if (!left_alone_.ok()) return left_alone_;
  absl::Status usable = CheckNothingLost();
  if (!usable.ok()) return usable;
  // For those that do something else and would wait for this rank.
  StepProgress refusing = progress();
  refusing.outcome = StepOutcome::kRefusing;
  session_->SetProgress(refusing);
  const StepEngine::Result result =
      generation_->engine().Refuse(errors::TrainerGone({options_.rank}, how_known));
  if (!result.refused && !HasClosed(result.status)) return Break(result);
  // Who has left in good order steps no more, and this rank wants nothing of it.
  if (!result.refused) left_alone_ = result.status;
  PublishProgress(StepOutcome::kIdle);
  return left_alone_;
}

absl::Status ShardOwner::Impl::FinishLoading(const LoadInput& load) {
  ShardState& state = generation_->state();
  absl::Status finished =
      BetweenSteps([&](StepEngine& engine) { return engine.FinishLoading(load, state.staged()); });
  state.DropStaged().IgnoreError();
  if (!finished.ok()) return finished;
  board_->SetHyperparameters(generation_->engine().record().hyperparameters);
  PublishProgress(StepOutcome::kIdle);
  return finished;
}

absl::Status ShardOwner::Impl::ReplaceState(absl::Duration timeout) {
  ShardState& state = generation_->state();
  absl::Status replaced = BetweenSteps(
      [&](StepEngine& engine) { return engine.ReplaceState(state.staged(), timeout); });
  state.DropStaged().IgnoreError();
  if (replaced.ok()) PublishProgress(StepOutcome::kIdle);
  return replaced;
}

absl::Status ShardOwner::Impl::Stop(absl::Duration timeout) {
  if (stopped_) return absl::OkStatus();
  stopped_ = true;
  absl::Status closed;
  if (failure().ok()) closed = Settle(std::max(timeout, kLongestStep));
  if (plane_ != nullptr && failure().ok()) closed = plane_->Close(options_.clock->Now() + timeout);
  guard_->Detach();
  // After a failure, too: the others know of it, and this rank's end is no further one. With time
  // of its own: a rank that is gone without a word looks lost, also where it has waited for others.
  absl::Status left = session_->Leave(options_.clock->Now() + timeout);
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
  if (lost.status.ok()) {
    lost.status = left_alone_;
    lost.plane_failed = true;
  }
  if (lost.status.ok()) return absl::OkStatus();
  // Nobody can have applied a step after the last one, but that may not be done on the device.
  lost.outcome = generation_->engine().Synchronize(kLongestStep).outcome;
  if (lost.outcome == StepOutcome::kIdle) lost.outcome = StepOutcome::kNotApplied;
  return Break(lost);
}

// Waits for the step that is under way on a device.
absl::Status ShardOwner::Impl::Settle(absl::Duration timeout) {
  const StepEngine::Result done = generation_->engine().Synchronize(timeout);
  return done.status.ok() ? done.status : Break(done);
}

absl::Status ShardOwner::Impl::Synchronize(absl::Duration timeout) {
  absl::Status usable = CheckUsable();
  return usable.ok() ? Settle(timeout) : usable;
}

absl::StatusOr<ShardState*> ShardOwner::Impl::state() {
  absl::Status usable = CheckUsable();
  if (usable.ok()) usable = Settle(kLongestStep);
  if (!usable.ok()) return usable;
  return &generation_->state();
}

void ShardOwner::Impl::PublishProgress(StepOutcome outcome) {
  StepProgress progress = generation_->engine().progress();
  progress.outcome = outcome;
  session_->SetProgress(progress);
  // Readers are given nothing of state that is that of no step.
  const bool is_torn = generation_->store()->ledger().progress().outcome == StepOutcome::kTorn &&
                       !generation_->engine().is_under_way();
  if (is_torn && outcome == StepOutcome::kIdle) progress.outcome = StepOutcome::kTorn;
  board_->SetProgress(progress);
}

// Asks the coordinator which rank the job lost. The first error seen may name a rank that only hung
// up because of the loss (docs/decisions/0005).
absl::Status ShardOwner::Impl::AttributeFailure(StepOutcome outcome, const absl::Status& observed) {
  const std::vector<Rank> blamed = errors::RanksOf(observed);
  StepProgress progress = generation_ == nullptr ? resumed_ : generation_->engine().progress();
  progress.outcome = outcome;
  return session_->ReportFailure(progress, blamed.empty() ? -1 : blamed.front(), observed,
                                 options_.clock->Now() + options_.attribution_timeout);
}

// The owner's failure from now on.
absl::Status ShardOwner::Impl::Break(const StepEngine::Result& result) {
  const StepNumber finished = generation_->engine().finished();
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
  // Whoever waits for one is told at once.
  generation_->snapshots()->End(failure);
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
  context.generation = shape_->generation();
  if (generation_ != nullptr) context.step = generation_->engine().finished();
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
                                        absl::Duration timeout, void* stream) {
  return impl_->BetweenSteps(
      [&](StepEngine& engine) { return engine.SyncParameters(replica, regions, timeout, stream); });
}

absl::Status ShardOwner::AddGroups(
    const OptimizerSpec& spec, const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates,
    const absl::Status& prepared, absl::Duration timeout) {
  return impl_->AddGroups(spec, trainer_updates, prepared, timeout);
}

absl::Status ShardOwner::VerifyReplicas(absl::Span<const ReplicaTensor> replica,
                                        absl::Span<const ReplicaRegion> regions,
                                        absl::Duration timeout, void* stream) {
  return impl_->BetweenSteps(
      [&](StepEngine& engine) { return engine.VerifyReplicas(replica, regions, timeout, stream); });
}

absl::Status ShardOwner::ShareBytes(const ByteShare& share, absl::Duration timeout) {
  return impl_->BetweenSteps([&](StepEngine& engine) { return engine.ShareBytes(share, timeout); });
}

absl::Status ShardOwner::FinishLoading(const LoadInput& load) { return impl_->FinishLoading(load); }

absl::Status ShardOwner::ReplaceState(absl::Duration timeout) {
  return impl_->ReplaceState(timeout);
}

absl::StatusOr<StepInfo> ShardOwner::Step(const StepInput& input) { return impl_->Step(input); }

void ShardOwner::KeepParameters(std::shared_ptr<const ParameterMemory> memory) {
  impl_->KeepParameters(std::move(memory));
}

void ShardOwner::CopyParameters() { impl_->CopyParameters(); }

absl::Status ShardOwner::RefuseNextStep(absl::string_view how_known) {
  return impl_->RefuseNextStep(how_known);
}

void ShardOwner::AbortPlane(const absl::Status& reason) { impl_->AbortPlane(reason); }

absl::Status ShardOwner::Stop(absl::Duration timeout) { return impl_->Stop(timeout); }

absl::Status ShardOwner::failure() const { return impl_->failure(); }

absl::Status ShardOwner::lost() const { return impl_->lost(); }

absl::Status ShardOwner::Synchronize(absl::Duration timeout) { return impl_->Synchronize(timeout); }

absl::StatusOr<ShardState*> ShardOwner::state() { return impl_->state(); }

StepProgress ShardOwner::progress() const { return impl_->progress(); }

bool ShardOwner::lacks_values() const { return impl_->lacks_values(); }

const Plan& ShardOwner::plan() const { return impl_->plan(); }

absl::Span<const ReplicaRegion> ShardOwner::shared_replica() const {
  return impl_->shared_replica();
}

std::shared_ptr<const void> ShardOwner::shared_replica_memory() const {
  return impl_->shared_replica_memory();
}

const ShardView& ShardOwner::view() const { return impl_->view(); }

}  // namespace optshard

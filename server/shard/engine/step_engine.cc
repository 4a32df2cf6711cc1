#include "server/shard/engine/step_engine.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/default_floating_point.h"
#include "common/errors.h"
#include "server/shard/engine/commit_decision.h"
#include "server/shard/engine/exchange_choice.h"
#include "server/shard/engine/replica_placement.h"
#include "server/update/group_update.h"
#include "server/update/step_hyperparameters.h"

namespace optshard {
namespace {

// An aborted plane lets go of its buffers at once; this only bounds the wait for one that does not.
constexpr absl::Duration kAbandonTimeout = absl::Seconds(5);

constexpr absl::Duration kRefusalTimeout = absl::Seconds(5);

constexpr int kWholeStep = -1;  // as a bucket of the timeline

}  // namespace

absl::StatusOr<std::unique_ptr<StepEngine>> StepEngine::Create(const Options& options) {
  absl::StatusOr<std::unique_ptr<StepExchange>> exchange = MakeExchange(options);
  if (!exchange.ok()) return exchange.status();
  return std::unique_ptr<StepEngine>(new StepEngine(options, *std::move(exchange)));
}

StepEngine::StepEngine(const Options& options, std::unique_ptr<StepExchange> exchange)
    : options_(options),
      no_replica_(options_.space().parameter_count()),
      on_host_(*HostTransfer::Create(nullptr, *options_.clock)),
      exchange_(std::move(exchange)),
      runs_trainer_updates_(
          std::any_of(options_.groups->begin(), options_.groups->end(),
                      [](const GroupUpdate& group) { return group.trainer_update != nullptr; })),
      rows_(&options_.space(), &options_.buckets(), options_.world_size()),
      all_ranks_(options_.world_size()),
      finished_(options_.store->ledger().progress().finished),
      skipped_(options_.store->ledger().progress().skipped),
      values_(options_.before == nullptr ? options_.values : ParameterValues::kAddedAreMissing),
      incarnations_(options_.before == nullptr ? std::vector<Incarnation>(options_.world_size(), 0)
                                               : options_.before->incarnations_) {
  std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
  record_.generation = options_.shape->generation();
  record_.hyperparameters = HyperparametersOf(*options_.groups);
  std::vector<Hyperparameters> begins_with = record_.hyperparameters;
  const std::vector<Hyperparameters>& last = options_.before != nullptr
                                                 ? *options_.before->hyperparameters_
                                                 : options_.last_hyperparameters;
  std::copy(last.begin(), last.end(), begins_with.begin());
  hyperparameters_ = std::make_shared<const std::vector<Hyperparameters>>(std::move(begins_with));
  record_.rows = &rows_;
  record_.updated.resize(options_.space().parameter_count());
  record_.coefficients.resize(options_.space().parameter_count());
  for (int p = 0; p < options_.space().parameter_count(); ++p) {
    const UpdateRule& rule = *(*options_.groups)[options_.space().group_of(p)].rule;
    takes_dense_.push_back(rule.spec().sparse_gradients != SparseGradients::kOnly);
  }
  owned_.resize(options_.space().parameter_count());
  for (const Slice& slice : options_.plan().partition.slices[options_.rank]) {
    owned_[slice.parameter] = true;
  }
  options_.snapshots->Begin(now());
}

// Nothing on the device uses the engine's memory any more, or that of others.
StepEngine::~StepEngine() {
  if (under_way_) Abandon(absl::CancelledError("its shard owner has gone in the middle of a step"));
}

StepEngine::Result StepEngine::Step(const StepInput& input) {
  return TakePart(input, absl::OkStatus(), options_.clock->Now() + input.timeout);
}

StepEngine::Result StepEngine::Refuse(const absl::Status& reason, absl::Time deadline) {
  if (values_ == ParameterValues::kAddedAreMissing) return RefuseToSynchronise(reason, deadline);
  return TakePart(StepInput(), reason, deadline);
}

StepEngine::Result StepEngine::TakePart(const StepInput& input, const absl::Status& willing,
                                        absl::Time deadline) {
  const Call call(this);
  const DefaultFloatingPoint default_mode;  // coefficients are computed here, too
  const absl::Time start = options_.clock->Now();
  record_.step = finished_ + 1;
  options_.timeline->BeginStep(record_.step, start);
  absl::optional<Result> failed = Settle(deadline);
  if (failed.has_value()) return *std::move(failed);

  // A rank whose input is invalid takes part all the same, with nothing to contribute, until the
  // commit tells all ranks why: leaving now would let them wait for it.
  const absl::Status replica_ok =
      willing.ok() ? CheckReplica(input.replica, input.regions) : willing;
  absl::Status prepared = replica_ok;
  if (values_ == ParameterValues::kAddedAreMissing) {
    prepared.Update(absl::FailedPreconditionError(
        "the added parameters have no values yet: synchronise the parameters before the next "
        "step"));
  } else if (values_ == ParameterValues::kOfEachRank && options_.state().MayHaveMasters()) {
    prepared.Update(absl::FailedPreconditionError(
        "the masters have no values yet: synchronise the parameters before the first step"));
  }
  if (willing.ok()) prepared.Update(UseHyperparameters(input.hyperparameters));
  if (prepared.ok() && options_.store->ledger().progress().outcome == StepOutcome::kTorn) {
    prepared = absl::DataLossError(absl::StrCat("its optimizer state is that of no step: ",
                                                RemedyOf(options_.store->ledger().replacing())));
  }
  if (prepared.ok()) prepared = CheckGradients(input.replica);
  const ReplicaMemory replica = replica_ok.ok()
                                    ? ReplicaMemory(input.replica, input.regions, input.stream)
                                    : ReplicaMemory(no_replica_, {}, input.stream);

  Agreement agreed;
  absl::Status status;
  do {
    status = Agree(replica, prepared, start, deadline, &agreed);
    if (!status.ok()) return Failed(std::move(status), agreed.outcome);
    // Only the votes have told that these are sparse: what was reduced is not what is needed.
  } while (agreed.decision.status.ok() && rows_.Watch(agreed.decision.sparse));
  std::vector<CommitVote>& votes = agreed.votes;
  CommitDecision& decision = agreed.decision;
  const absl::Time reduced = agreed.reduced;
  const absl::Time committed = options_.clock->Now();
  options_.timeline->Record("commit", kWholeStep, reduced, committed);
  if (!decision.status.ok()) return GivenUp(decision, deadline);
  record_.has_gradient.clear();
  for (CommitVote& vote : votes) {
    incarnations_[vote.rank] = vote.incarnation;
    record_.has_gradient.push_back(std::move(vote.has_gradient));
  }
  record_.updated = std::move(decision.updated);

  if (decision.skipped) {
    ++skipped_;
    options_.store->ledger().SetProgress(progress());
    if (input.on_skip) input.on_skip(finished_);
  } else {
    const RightOfWay::Taken taken(options_.store->snapshots().right_of_way());
    Result applied = Apply(replica, deadline);
    if (!applied.status.ok()) return applied;
  }
  RememberHyperparameters();
  const absl::Time end = options_.clock->Now();
  options_.timeline->Record("apply", kWholeStep, committed, end);
  options_.timeline->EndStep();

  Result result;
  result.info.step = finished_;
  result.info.skipped = decision.skipped;
  result.info.prepare = reduced - start;
  result.info.commit = committed - reduced;
  result.info.apply = end - committed;
  return result;
}

// If the state belongs to no step, every rank refuses the step. The ranks then exchange only votes:
// a rank that is loading sends votes and no gradients, and would keep the others waiting.
absl::Status StepEngine::Agree(const ReplicaMemory& replica, const absl::Status& prepared,
                               absl::Time start, absl::Time deadline, Agreement* agreed) {
  agreed->votes.clear();
  agreed->outcome = StepOutcome::kNotApplied;
  absl::Status status = GatherRows(replica, deadline);
  if (status.ok() && !options_.store->ledger().has_no_step()) {
    status = exchange_->Prepare(record_, replica, deadline);
  }
  agreed->reduced = options_.clock->Now();
  options_.timeline->Record("prepare", kWholeStep, start, agreed->reduced);
  if (!status.ok()) return status;

  bool sent = false;
  status = GatherFirstVotes(MakeVote(replica, prepared, CommitCall::kStep), deadline,
                            &agreed->votes, &sent);
  if (!status.ok()) {
    // Without this rank's yes nobody applies the step.
    if (prepared.ok() && sent) agreed->outcome = StepOutcome::kInDoubt;
    return status;
  }
  agreed->decision = Decide(agreed->votes, agreed->votes[options_.rank], incarnations_,
                            options_.gradient_mode(), options_.space());
  // Every rank has the marks of all, so that all decide alike.
  if (agreed->decision.status.ok() && options_.gradient_mode() == GradientMode::kAveraged) {
    agreed->decision.status = rows_.CheckAlike();
  }
  if (!agreed->decision.hyperparameters_differ) return absl::OkStatus();
  return NameDifferentHyperparameters(agreed->votes, deadline, &agreed->decision);
}

// The ledger is never behind what has happened, whenever this process ends.
StepEngine::Result StepEngine::Apply(const ReplicaMemory& replica, absl::Time deadline) {
  PrepareCoefficients();
  ShardLedger& ledger = options_.store->ledger();
  ledger.SetProgress({finished_, StepOutcome::kTorn, skipped_});
  if (runs_trainer_updates_) {
    Result ran = RunTrainerUpdates(replica, deadline);
    if (!ran.status.ok()) return ran;
  }
  absl::Status status = exchange_->Apply(record_, replica, deadline);
  if (!status.ok()) return Failed(std::move(status), StepOutcome::kTorn);
  options_.store->CountStep(record_.step, record_.updated,
                            [this](int parameter) -> const ScalarSlots* {
                              if (!owned_[parameter]) return nullptr;
                              return &record_.coefficients[parameter].scalar_slots;
                            });
  if (options_.state_is_on_device()) {
    // The ledger calls it torn until it is done there.
    under_way_ = true;
    finished_ = record_.step;
    return Result();
  }
  ledger.SetProgress({finished_, StepOutcome::kApplied, skipped_});
  status = exchange_->Complete(record_, deadline);
  if (!status.ok()) return Failed(std::move(status), StepOutcome::kApplied);
  finished_ = record_.step;
  ledger.SetProgress(progress());
  if (options_.device_access != nullptr) options_.device_access->UpdatesHaveEnded();
  return Result();
}

absl::Status StepEngine::CheckReplica(absl::Span<const ReplicaTensor> replica,
                                      absl::Span<const ReplicaRegion> regions) const {
  absl::Status tensors = CheckTensors(options_.space(), replica);
  if (!tensors.ok()) return tensors;
  if (!regions.empty() && regions.size() != options_.layout().regions().size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d flat regions were given, expected none or one for each of the %d of "
                        "the memory layout",
                        regions.size(), options_.layout().regions().size()));
  }
  return exchange_->Check(ReplicaMemory(replica, regions));
}

void StepEngine::RememberHyperparameters() {
  if (!std::exchange(hyperparameters_are_new_, false)) return;
  hyperparameters_ = std::make_shared<const std::vector<Hyperparameters>>(record_.hyperparameters);
}

absl::Status StepEngine::UseHyperparameters(absl::Span<const Hyperparameters> given) {
  // Mostly they are the last step's.
  if (!given_.empty() && given == absl::MakeConstSpan(given_)) return absl::OkStatus();
  absl::StatusOr<std::vector<Hyperparameters>> validated = ValidateForStep(*options_.groups, given);
  if (!validated.ok()) return validated.status();
  given_.assign(given.begin(), given.end());
  record_.hyperparameters = *std::move(validated);
  hyperparameters_are_new_ = true;
  hyperparameter_text_ = HyperparameterText(record_.hyperparameters);
  return absl::OkStatus();
}

CommitVote StepEngine::MakeVote(const ReplicaMemory& replica, const absl::Status& prepared,
                                CommitCall call) const {
  CommitVote vote;
  vote.rank = options_.rank;
  vote.incarnation = options_.incarnation;
  vote.generation = record_.generation;
  vote.step = record_.step;
  vote.call = call;
  vote.prepared = prepared;
  for (const Hyperparameters& values : record_.hyperparameters) {
    vote.hyperparameter_digests.push_back(values.Digest());
  }
  vote.hyperparameter_text_bytes = static_cast<uint32_t>(hyperparameter_text_.size());
  vote.has_gradient.resize(options_.space().parameter_count());
  vote.sparse.resize(options_.space().parameter_count());
  for (int p = 0; p < options_.space().parameter_count(); ++p) {
    const ReplicaTensor& tensor = replica.tensor(p);
    vote.has_gradient[p] = tensor.gradient != nullptr;
    vote.sparse[p] = vote.has_gradient[p] && tensor.gradient_rows.marks != nullptr;
  }
  return vote;
}

absl::Status StepEngine::GatherFirstVotes(CommitVote own, absl::Time deadline,
                                          std::vector<CommitVote>* votes, bool* sent) {
  own.snapshots = options_.snapshots->Vote(EffectOf(own.call));
  absl::Status status = GatherVotes(kVotes, own, deadline, votes, sent);
  if (!status.ok()) return status;
  std::vector<SnapshotIds> snapshots;
  for (const CommitVote& vote : *votes) {
    if (vote.snapshots != SnapshotIds{}) snapshots.push_back(vote.snapshots);
  }
  options_.snapshots->TakeVotes(snapshots);
  return absl::OkStatus();
}

absl::Status StepEngine::GatherVotes(CommitRound round, const CommitVote& own, absl::Time deadline,
                                     std::vector<CommitVote>* votes, bool* sent) {
  if (options_.world_size() == 1) {
    votes->push_back(own);
    return absl::OkStatus();
  }
  const int groups = options_.space().group_count();
  const int parameters = options_.space().parameter_count();
  std::vector<char> contribution(CommitVoteBytes(groups, parameters));
  EncodeVote(own, absl::MakeSpan(contribution));
  std::vector<char> gathered;
  absl::Status status = AllGather(round, contribution, &gathered, deadline, sent);
  for (int r = 0; status.ok() && r < options_.world_size(); ++r) {
    absl::StatusOr<CommitVote> decoded = DecodeVote(
        absl::MakeConstSpan(gathered).subspan(r * contribution.size(), contribution.size()), groups,
        parameters);
    if (!decoded.ok()) {
      return errors::WithContext(decoded.status(), absl::StrCat("the vote of rank ", r));
    }
    votes->push_back(std::move(*decoded));
  }
  return status;
}

absl::Status StepEngine::Barrier(CommitRound round, absl::Time deadline) {
  if (options_.world_size() == 1) return absl::OkStatus();
  std::vector<char> gathered;
  return AllGather(round, {1}, &gathered, deadline);
}

absl::Status StepEngine::AllGather(CommitRound round, const std::vector<char>& contribution,
                                   std::vector<char>* gathered, absl::Time deadline,
                                   bool* started) {
  gathered->resize(contribution.size() * options_.world_size());
  absl::StatusOr<std::unique_ptr<Ticket>> ticket = options_.plane->AllGather(
      TagOf(options_, record_.step, StepPhase::kCommit, round), ExecutionContext(),
      contribution.data(), gathered->data(), contribution.size());
  if (!ticket.ok()) return ticket.status();
  if (started != nullptr) *started = true;
  return (*ticket)->Wait(deadline);
}

absl::Status StepEngine::NameDifferentHyperparameters(absl::Span<const CommitVote> votes,
                                                      absl::Time deadline,
                                                      CommitDecision* decision) {
  size_t longest = 0;
  for (const CommitVote& vote : votes) {
    longest = std::max<size_t>(longest, vote.hyperparameter_text_bytes);
  }
  // The plane takes 1 MiB; thousands of groups get the short message.
  if (longest > (1 << 20)) return absl::OkStatus();
  std::vector<char> contribution(hyperparameter_text_.begin(), hyperparameter_text_.end());
  contribution.resize(longest);
  std::vector<char> gathered;
  absl::Status status = AllGather(kHyperparameters, contribution, &gathered, deadline);
  if (!status.ok()) return status;
  std::vector<std::string> texts;
  for (const CommitVote& vote : votes) {
    texts.emplace_back(gathered.data() + vote.rank * longest, vote.hyperparameter_text_bytes);
  }
  const std::string difference = DescribeDifference(texts);
  if (!difference.empty()) {
    decision->status = errors::WithContext(decision->status, difference);
  }
  return absl::OkStatus();
}

void StepEngine::PrepareCoefficients() {
  // Parameters of a group mostly have the same count; the powers need not be computed for each.
  // Scalar slots by their bits: a NaN has no place in an order.
  using Bits = std::array<uint64_t, kMaxScalarSlots>;
  std::map<std::tuple<int, StepNumber, DType, Bits>, Coefficients> known;
  for (int p = 0; p < options_.space().parameter_count(); ++p) {
    if (!owned_[p] || !record_.updated[p]) continue;
    const int group = options_.space().group_of(p);
    const StepNumber count = options_.store->step_count(p) + 1;
    const DType dtype = options_.space().parameter(p).dtype;
    const ScalarSlots before = options_.store->scalar_slots(p);
    Bits bits;
    static_assert(sizeof(bits) == sizeof(before), "a double is 64 bits");
    std::memcpy(bits.data(), before.data(), sizeof(bits));
    const auto [entry, is_new] = known.try_emplace({group, count, dtype, bits});
    if (is_new) {
      const UpdateRule& rule = *(*options_.groups)[group].rule;
      entry->second = rule.Prepare(record_.hyperparameters[group], count, dtype, before);
    }
    record_.coefficients[p] = entry->second;
  }
}

StepEngine::Result StepEngine::Synchronize(absl::Duration timeout) {
  absl::optional<Result> failed = Settle(options_.clock->Now() + timeout);
  if (failed.has_value()) return *std::move(failed);
  Result result;
  result.info.step = finished_;
  return result;
}

HostTransfer& StepEngine::transfer() {
  return options_.device_access == nullptr ? on_host_ : options_.device_access->transfer();
}

absl::optional<StepEngine::Result> StepEngine::Settle(absl::Time deadline) {
  absl::Status settled = exchange_->Settle(deadline);
  if (!settled.ok()) {
    return Failed(std::move(settled), under_way_ ? StepOutcome::kTorn : StepOutcome::kNotApplied);
  }
  if (std::exchange(under_way_, false)) {
    options_.store->ledger().SetProgress(progress());
    options_.device_access->UpdatesHaveEnded();
  }
  return absl::nullopt;
}

StepEngine::Result StepEngine::Failed(absl::Status status, StepOutcome outcome) {
  // Nobody will know of it any more that it is done.
  if (std::exchange(under_way_, false)) --finished_;
  if (options_.state_is_on_device() && absl::IsDataLoss(status)) {
    // What lies in the memory of a device that has failed is not to be used.
    outcome = StepOutcome::kTorn;
    options_.store->ledger().SetProgress({finished_, outcome, skipped_});
  }
  options_.snapshots->End(status);
  Abandon(status);
  EndTimeline(status);
  Result result;
  result.status = std::move(status);
  result.outcome = outcome;
  result.plane_failed = options_.plane != nullptr;
  return result;
}

StepEngine::Result StepEngine::GivenUp(const CommitDecision& decision, absl::Time deadline) {
  // The error may end this rank's process. To a rank that still waits for the votes it would look
  // lost; so none returns before all know why. While a trainer is away its rank refuses often, and
  // stays.
  if (!errors::IsTrainerGone(decision.status)) {
    // All ranks have voted, so all are here, however late the last one came.
    const absl::Time soon = options_.clock->Now() + kRefusalTimeout;
    const absl::Status known = Barrier(kRefusalIsKnown, std::max(deadline, soon));
    // A rank that is lost only now is the next call's error.
    if (!known.ok()) Abandon(known);
  }
  EndTimeline(decision.status);
  Result result;
  result.status = decision.status;
  result.outcome = StepOutcome::kNotApplied;
  result.refused = !decision.is_final;
  return result;
}

void StepEngine::Abandon(const absl::Status& reason) {
  if (options_.plane != nullptr) options_.plane->Abort(reason);
  exchange_->Abandon(options_.clock->Now() + kAbandonTimeout);
}

void StepEngine::EndTimeline(const absl::Status& status) {
  // While a trainer is away there may be many of these; the ring is for steps.
  if (errors::IsTrainerGone(status)) {
    options_.timeline->DropStep();
  } else {
    options_.timeline->EndStep();
  }
}

}  // namespace optshard

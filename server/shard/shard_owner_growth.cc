// How an owner goes on with added param groups.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/membership/growth.h"
#include "common/spec_growth.h"
#include "server/shard/shard_owner_impl.h"
#include "server/shard/shard_owner_options.h"

namespace optshard {
namespace {

// How much longer than the others the coordinator is waited for, which says who did not come.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);

absl::Status OddAnswer(const GrowthAnswer& answer, Generation expected) {
  return absl::InternalError(absl::StrCat("the coordinator has all ranks agree to generation ",
                                          answer.generation, ", expected ", expected,
                                          "; run the same version of optshard everywhere"));
}

}  // namespace

absl::Status ShardOwner::Impl::AddGroups(
    const OptimizerSpec& spec, const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates,
    const absl::Status& prepared, absl::Duration timeout) {
  GroupUpdates groups;
  absl::Status usable = CheckNothingLost();
  if (usable.ok()) usable = CheckGroups(spec, trainer_updates, &groups);
  if (usable.ok()) usable = Settle(timeout);
  if (!usable.ok()) return usable;
  const absl::Time start = options_.clock->Now();
  GrowthProposal proposal;
  proposal.number = ++growth_calls_;
  proposal.spec = spec;
  // What is not given has its default on all ranks.
  for (size_t g = shape_->spec().rules.size(); g < groups->size(); ++g) {
    proposal.spec.rules[g].hyperparameters = (*groups)[g].hyperparameters;
  }
  proposal.prepared = prepared;
  proposal.calls = LastCall(progress());
  proposal.patience = timeout;
  absl::StatusOr<GrowthAnswer> answer =
      session_->ProposeGrowth(proposal, start + timeout + kAnswerTimeout);
  if (!answer.ok()) {
    absl::Status lost = CheckNothingLost();
    if (!lost.ok()) return lost;
    // The answer may come before the event that tells of the loss.
    return errors::IsPeerLost(answer.status()) ? BreakOf(answer.status()) : answer.status();
  }
  if (answer->verdict == GrowthVerdict::kRefused) return TakeRefusal(*answer, timeout);
  const Generation number = shape_->plan().generation + 1;
  if (answer->generation != number) return OddAnswer(*answer, number);
  // Half of the time is left for the others to say that they could not.
  absl::StatusOr<std::unique_ptr<OwnerGeneration>> next =
      BuildNext(spec, std::move(groups), number, options_.clock->Now() + timeout / 2);
  proposal.phase = GrowthPhase::kCommit;
  proposal.prepared = next.status();
  answer = session_->ProposeGrowth(proposal, options_.clock->Now() + timeout + kAnswerTimeout);
  if (answer.ok() && answer->verdict == GrowthVerdict::kAgreed && answer->generation != number) {
    answer = OddAnswer(*answer, number);
  }
  // Others may have gone on.
  if (!answer.ok()) return BreakOf(answer.status());
  if (answer->verdict == GrowthVerdict::kRefused) return TakeRefusal(*answer, timeout);
  GoOnWith(*std::move(next));
  return absl::OkStatus();
}

absl::Status ShardOwner::Impl::BreakOf(const absl::Status& cause) {
  StepEngine::Result failed;
  failed.status = cause;
  failed.outcome = StepOutcome::kNotApplied;
  failed.plane_failed = true;
  return Break(failed);
}

absl::Status ShardOwner::Impl::CheckGroups(
    const OptimizerSpec& spec, const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates,
    GroupUpdates* groups) const {
  absl::Status valid = CheckGrowth(shape_->spec(), spec);
  if (valid.ok()) valid = CheckSupported(spec.space, options_.device.get());
  if (!valid.ok()) return valid;
  absl::StatusOr<std::vector<GroupUpdate>> validated = ValidateGroups(spec, trainer_updates);
  if (!validated.ok()) return validated.status();
  *groups = std::make_shared<const std::vector<GroupUpdate>>(*std::move(validated));
  return absl::OkStatus();
}

absl::Status ShardOwner::Impl::TakeRefusal(const GrowthAnswer& answer, absl::Duration timeout) {
  if (!answer.others_step) return answer.failure;
  // They wait for this rank's vote.
  if (options_.before_refusal) options_.before_refusal();
  const StepEngine::Result result =
      generation_->engine().Refuse(answer.failure, options_.clock->Now() + timeout);
  return result.refused ? answer.failure : Break(result);
}

absl::StatusOr<std::unique_ptr<OwnerGeneration>> ShardOwner::Impl::BuildNext(
    const OptimizerSpec& spec, GroupUpdates groups, Generation number, absl::Time deadline) {
  absl::StatusOr<Plan> plan =
      MakePlan(number, spec.space, spec.policy, spec.world_size, shape_->plan().tree);
  if (!plan.ok()) return plan.status();
  OwnerGeneration::Options next = generation_->options();
  next.shape = GenerationShape::Make(spec, *std::move(plan));
  next.groups = std::move(groups);
  absl::optional<ShardMemory> added;
  if (options_.grow_memory) {
    absl::StatusOr<ShardMemory> memory = options_.grow_memory(spec);
    if (!memory.ok()) return memory.status();
    added = *std::move(memory);
  }
  absl::StatusOr<std::shared_ptr<DataPlane>> plane = ConnectPlane(*next.shape, deadline);
  if (!plane.ok()) return errors::WithContext(plane.status(), "connecting the data plane");
  next.plane = *std::move(plane);
  return OwnerGeneration::After(*generation_, std::move(next), std::move(added));
}

void ShardOwner::Impl::GoOnWith(std::unique_ptr<OwnerGeneration> next) {
  next->Begin(*generation_);
  if (next->plane() != nullptr) guard_->Attach(next->plane());
  view_->Show(
      {next->shape(), next->groups(), next->store(), next->snapshots(), next->snapshot_memory()});
  std::vector<Hyperparameters> shown = HyperparametersOf(*next->groups());
  const std::vector<Hyperparameters> before = board_->hyperparameters();
  std::copy(before.begin(), before.end(), shown.begin());
  board_->SetHyperparameters(shown);
  generation_ = std::move(next);
  shape_ = generation_->shape();
  groups_ = generation_->groups();
  plane_ = generation_->options().plane;
  PublishProgress(StepOutcome::kIdle);
  Log(LogLevel::kInfo, MakeLogContext(), "goes on with %d param groups of %d parameters",
      shape_->space().group_count(), shape_->space().parameter_count());
}

}  // namespace optshard

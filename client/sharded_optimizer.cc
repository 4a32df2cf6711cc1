#include "client/sharded_optimizer.h"

#include <c10/core/GradMode.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/owner/trainer_optimizer.h"
#include "client/replica/parameter_owners.h"
#include "client/state_archive.h"
#include "client/state_dict.h"

namespace optshard {

using torch::optim::OptimizerParamGroup;

struct ShardedOptimizer::Prepared : PreparedOptimizer {
  using PreparedOptimizer::PreparedOptimizer;
};

class ShardedOptimizer::Impl : public TrainerOptimizer {
 public:
  using TrainerOptimizer::TrainerOptimizer;

  void Step(const std::vector<OptimizerParamGroup>& groups) {
    TrainerOptimizer::Step(groups);
    static_cast<StepInfo&>(last_step_) = TrainerOptimizer::last_step();
    last_step_.gradients_copied = gradients_copied();
  }
  const ClientStepInfo& last_step() const { return last_step_; }

 private:
  ClientStepInfo last_step_;
};

ShardedOptimizer::ShardedOptimizer(std::vector<OptimizerParamGroup> groups,
                                   const RuleOptions& defaults, ShardedOptimizerOptions options)
    : ShardedOptimizer(Prepared(std::move(groups), defaults, std::move(options))) {}

ShardedOptimizer::ShardedOptimizer(std::vector<at::Tensor> parameters, const RuleOptions& defaults,
                                   ShardedOptimizerOptions options)
    : ShardedOptimizer(std::vector<OptimizerParamGroup>{OptimizerParamGroup(std::move(parameters))},
                       defaults, std::move(options)) {}

ShardedOptimizer::ShardedOptimizer(const Prepared& prepared)
    : Optimizer(prepared.groups, std::make_unique<RuleOptions>(prepared.defaults)),
      options_(prepared.options),
      impl_(std::make_shared<Impl>(prepared)) {
  impl_->MakeClasses(prepared.list, param_groups());
}

ShardedOptimizer::~ShardedOptimizer() { impl_->CloseQuietly(); }

at::Tensor ShardedOptimizer::step(LossClosure closure) {
  impl_->TakeAdditions(static_cast<const RuleOptions&>(defaults()), param_groups());
  // Before the closure's work. This rank's own mistake comes first: where all ranks make the same
  // one, each names it, also if another rank has ended because of it.
  impl_->TakeGroups(param_groups());
  impl_->CheckUsable();
  at::Tensor loss;
  if (closure != nullptr) {
    const c10::AutoGradMode gradients(true);
    loss = closure();
  }
  impl_->Step(param_groups());
  return loss;
}

void ShardedOptimizer::set_blob(const std::string& blob) { impl_->SetBlob(blob); }

const std::string& ShardedOptimizer::blob() const { return impl_->blob(); }

void ShardedOptimizer::refresh_parameters() {
  impl_->CheckUsable();
  impl_->CheckGroups(param_groups());
  impl_->RefreshParameters();
}

void ShardedOptimizer::verify_replicas() {
  impl_->CheckUsable();
  impl_->CheckGroups(param_groups());
  impl_->VerifyReplicas();
}

void ShardedOptimizer::refresh_trainable() { impl_->RefreshTrainable(); }

std::vector<std::vector<OptimizerParamGroup>> ShardedOptimizer::partition_parameters() const {
  impl_->CheckGroups(param_groups());
  return impl_->owners().Divide(param_groups());
}

std::vector<OwnedRange> ShardedOptimizer::owner_of(const at::Tensor& parameter) const {
  return impl_->owners().OwnersOf(ValueOrThrow(impl_->owners().IndexOf(parameter)));
}

std::vector<OwnedRange> ShardedOptimizer::owner_of(int parameter) const {
  return ValueOrThrow(impl_->owners().OwnersAt(parameter));
}

std::map<std::string, at::Tensor> ShardedOptimizer::state(const at::Tensor& parameter) const {
  impl_->CheckUsable();
  return impl_->state().Read(parameter);
}

void ShardedOptimizer::set_state(const at::Tensor& parameter,
                                 const std::map<std::string, at::Tensor>& slots) {
  impl_->CheckUsable();
  impl_->state().Write(parameter, slots);
}

void ShardedOptimizer::consolidate_state_dict(int to) {
  impl_->StateFor(param_groups()).Consolidate(to, param_groups());
}

const StateDict& ShardedOptimizer::state_dict() const { return impl_->state().consolidated(); }

const StateDict& ShardedOptimizer::state_dict(bool all_ranks) {
  if (all_ranks) consolidate_state_dict(-1);
  return state_dict();
}

NamedStateDict ShardedOptimizer::named_state_dict() const {
  return impl_->state().ConsolidatedByName();
}

StateDict ShardedOptimizer::local_state_dict() const {
  return impl_->StateFor(param_groups()).Local(param_groups());
}

StateDict ShardedOptimizer::rank_local_state_dict(int rank, const StateDict& whole) const {
  return impl_->state().ShareOf(rank, whole);
}

void ShardedOptimizer::load_state_dict(const StateDict& dict, int from) {
  impl_->StateFor(param_groups()).Load(dict, from, param_groups());
}

void ShardedOptimizer::load_state_dict(const NamedStateDict& dict, int from) {
  OptimizerState& state = impl_->StateFor(param_groups());
  state.Load(KeyedByIndex(dict, state.NamesOfAll()), from, param_groups());
}

LoadedCheckpoint ShardedOptimizer::load_checkpoint(const std::string& directory,
                                                   const std::string& name) {
  const auto prepared = impl_->MakeRoom(directory, name, param_groups());
  if (prepared.has_value()) {
    auto anew = std::make_shared<Impl>(*prepared);
    anew->TakePlaceOf(*impl_);
    std::atomic_store(&impl_, std::move(anew));
  }
  return impl_->LoadCheckpoint(directory, name, param_groups());
}

at::Tensor ShardedOptimizer::main_grad(const at::Tensor& parameter) {
  const int index = ValueOrThrow(impl_->owners().IndexOf(parameter));
  MainGradient* const gradient = impl_->replica().main_gradient(index);
  if (gradient != nullptr) return gradient->HandOut();
  throw StatusError(absl::InvalidArgumentError(
      absl::StrCat("parameter ", impl_->owners().space().position_of(index), " is ",
                   c10::toString(parameter.scalar_type()), " and main_gradients is ",
                   options().main_gradients ? "true" : "false",
                   ", expected a bfloat16 or float16 one where it is true: use parameter.grad()")));
}

torch::optim::Optimizer& ShardedOptimizer::local_optimizer(int group) const {
  return impl_->classes().OptimizerOf(group);
}

void ShardedOptimizer::zero_grad(bool set_to_none) { impl_->replica().ZeroGradients(set_to_none); }

StepNumber ShardedOptimizer::finished_step() const { return impl_->finished_step(); }

const ClientStepInfo& ShardedOptimizer::last_step() const { return impl_->last_step(); }

void ShardedOptimizer::add_param_group(const OptimizerParamGroup& group) {
  impl_->CheckUsable();
  const auto& rule = static_cast<const RuleOptions&>(defaults());
  impl_->TakeAdditions(rule, param_groups());
  impl_->Add(ParameterAddition::Group(group), rule, param_groups());
}

void ShardedOptimizer::add_parameters(const std::vector<at::Tensor>& parameters, int group) {
  impl_->CheckUsable();
  const auto& rule = static_cast<const RuleOptions&>(defaults());
  impl_->TakeAdditions(rule, param_groups());
  impl_->Add(ParameterAddition::To(group, parameters), rule, param_groups());
}

void ShardedOptimizer::save(torch::serialize::OutputArchive& archive) const {
  WriteArchive(state_dict(), archive);
}

void ShardedOptimizer::load(torch::serialize::InputArchive& archive) {
  impl_->StateFor(param_groups()).Load(ReadArchive(archive), kFromEveryRank, param_groups());
}

void ShardedOptimizer::save_checkpoint(const std::string& directory,
                                       const std::vector<std::string>& labels) {
  impl_->CheckUsable();
  impl_->SaveCheckpoint(directory, labels);
}

void ShardedOptimizer::export_model(const std::string& directory, int64_t shard_bytes) {
  impl_->CheckUsable();
  impl_->ExportModel(directory, shard_bytes);
}

std::string ShardedOptimizer::wait_checkpoint() { return impl_->WaitCheckpoint(); }

void ShardedOptimizer::Close() { impl_->Close(); }

// Any thread: load_checkpoint() may replace what is behind this.

int64_t ShardedOptimizer::state_bytes() const {
  return std::atomic_load(&impl_)->owner().state_bytes();
}

std::string ShardedOptimizer::owner_address() const {
  return std::atomic_load(&impl_)->owner().owner_address();
}

std::vector<std::string> ShardedOptimizer::owner_addresses() const {
  const std::shared_ptr<const Impl> impl = std::atomic_load(&impl_);
  return ValueOrThrow(impl->owner().owner_addresses(absl::Seconds(10)));
}

const ShardedOptimizerOptions& ShardedOptimizer::options() const { return options_; }

}  // namespace optshard

#include "client/sharded_optimizer.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/owner/class_groups.h"
#include "client/owner/constructed_groups.h"
#include "client/owner/optimizer_spec_of.h"
#include "client/owner/optimizer_state.h"
#include "client/owner/owner_choice.h"
#include "client/owner/wait_for_trainers.h"
#include "client/replica/flat_memory.h"
#include "client/replica/gradient_layouts.h"
#include "client/replica/memory_choice.h"
#include "client/replica/parameter_list.h"
#include "client/replica/parameter_owners.h"
#include "client/replica/replica.h"
#include "client/replica/trainable_watch.h"
#include "client/state_archive.h"
#include "client/state_dict.h"
#include "common/errors.h"
#include "common/log.h"
#include "common/optimizer_spec.h"
#include "server/shard/engine/step_input.h"

namespace optshard {
namespace {

using torch::optim::OptimizerParamGroup;

constexpr char kTrainableNote[] =
    ". A frozen parameter keeps its value, its owner and its state, and goes on from there once it "
    "is unfrozen. Call refresh_trainable() after a switch to hide this message";

std::vector<std::vector<at::Tensor>> TensorsOf(const std::vector<OptimizerParamGroup>& groups) {
  std::vector<std::vector<at::Tensor>> tensors;
  for (const OptimizerParamGroup& group : groups) tensors.push_back(group.params());
  return tensors;
}

}  // namespace

// What must be known before the base class can be constructed.
struct ShardedOptimizer::Prepared {
  Prepared(std::vector<OptimizerParamGroup> given, const RuleOptions& rule,
           ShardedOptimizerOptions client_options)
      : groups(std::move(given)),
        options(ValueOrThrow(WithKnownRank(std::move(client_options)))),
        defaults(SayingWhere("rank", options.rank, [&] { return rule.Complete(); })) {
    SayingWhere("rank", options.rank, [&] {
      for (size_t g = 0; g < groups.size(); ++g) {
        groups[g].set_options(std::make_unique<RuleOptions>(
            SayingWhere("param group", g, [&] { return RuleOptions::OfGroup(groups[g], rule); })));
      }
      list = ValueOrThrow(MakeParameterList(TensorsOf(groups), options.parameter_names));
      if (options.main_gradients) ThrowIfError(UseMainGradients(list));
    });
    for (OptimizerParamGroup& group : groups) group.params().clear();
    for (size_t i = 0; i < list.tensors.size(); ++i) {
      groups[list.space.group_of(static_cast<int>(i))].params().push_back(list.tensors[i]);
    }
    spec = OptimizerSpecOf(options, list.space, groups);
    list.space = spec.space;
  }

  std::vector<OptimizerParamGroup> groups;  // all options set, each parameter once
  ShardedOptimizerOptions options;
  RuleOptions defaults;
  ParameterList list;
  OptimizerSpec spec;
};

class ShardedOptimizer::Impl {
 public:
  explicit Impl(const Prepared& prepared)
      : options_(prepared.options),
        classes_(prepared.groups),
        groups_(prepared.spec, TensorsOf(prepared.groups), options_.rank, classes_),
        memory_(SayingWhere("rank", options_.rank,
                            [&] { return ValueOrThrow(ChooseMemory(options_, prepared.list)); })),
        owner_(ValueOrThrow(
            StartOwner(WithMemory(options_, memory_), prepared.spec, classes_.updates()))),
        replica_(MakeReplica(prepared.list)),
        gradient_layouts_(prepared.list, groups_.updates(),
                          ValueOrThrow(ParseStateFormat(options_.state_dtype))),
        trainable_(prepared.list),
        owners_(ValueOrThrow(
            ParameterOwners::Make(prepared.list, options_.world_size, options_.policy))),
        state_({owner_.get(), &owners_, &classes_, &groups_.updates(), prepared.spec.state,
                &options_, prepared.list.tensors}) {
    for (const std::string& warning : prepared.list.warnings) Warn(warning);
    if (!memory_.warning.empty()) Warn(memory_.warning);
    if (!owner_->resumes()) RefreshParameters();
  }

  void MakeClasses(const ParameterList& list, std::vector<OptimizerParamGroup>& groups) {
    classes_.Make(list, owners_, options_.rank, groups);
  }

  void RefreshParameters() {
    SayingWhere("rank", options_.rank, [this] { ThrowIfError(replica_->Gather()); });
    const absl::Status synced =
        owner_->SyncParameters(replica_->tensors(), replica_->regions(), options_.join_timeout);
    replica_->Scatter();
    ThrowIfError(synced);
  }

  void VerifyReplicas() {
    SayingWhere("rank", options_.rank, [this] { ThrowIfError(replica_->GatherValues()); });
    ThrowIfError(
        owner_->VerifyReplicas(replica_->tensors(), replica_->regions(), options_.step_timeout));
  }

  void CheckUsable() const {
    if (closed_) {
      throw StatusError(absl::FailedPreconditionError(
          "this optimizer has been closed: it has left its job and cannot step any more"));
    }
    ThrowIfError(owner_->failure());
  }

  void CheckGroups(const std::vector<OptimizerParamGroup>& groups) const {
    groups_.CheckParameters(groups);
  }

  // Before the other ranks are asked for anything: they go on waiting while this one is corrected.
  void TakeGroups(const std::vector<OptimizerParamGroup>& groups) {
    groups_.CheckParameters(groups);
    groups_.TakeHyperparameters(groups);
  }

  void Step(const std::vector<OptimizerParamGroup>& groups) {
    TakeGroups(groups);
    SayingWhere("rank", options_.rank, [this] {
      ThrowIfError(replica_->Gather(ValueOrThrow(gradient_layouts_.Check(groups_.complete()))));
    });
    const std::string switched = trainable_.TakeChanges();
    if (!switched.empty()) Warn(absl::StrCat(switched, kTrainableNote));
    StepInput input;
    input.replica = replica_->tensors();
    input.regions = replica_->regions();
    input.hyperparameters = groups_.taken();
    input.timeout = options_.step_timeout;
    const absl::StatusOr<StepInfo> info =
        options_.wait_for_trainers ? StepWithAllTrainers(*owner_, input) : owner_->Step(input);
    replica_->Scatter();
    ThrowIfError(info.status());
    static_cast<StepInfo&>(last_step_) = *info;
    last_step_.gradients_copied = replica_->gradients_copied();
  }

  void Close() {
    if (closed_) return;
    ThrowIfError(owner_->failure());
    closed_ = true;
    ThrowIfError(owner_->Stop(options_.close_timeout));
  }

  // For the destructor.
  void CloseQuietly() {
    if (closed_ || std::uncaught_exceptions() > exceptions_ || !owner_->failure().ok()) {
      return;
    }
    const absl::Status stopped = owner_->Stop(options_.close_timeout);
    if (!stopped.ok()) Warn(absl::StrCat("leaving the job: ", stopped.ToString()));
  }

  void RefreshTrainable() { trainable_.TakeChanges(); }

  void SetBlob(absl::string_view blob) { ThrowIfError(owner_->SetBlob(blob)); }

  OptimizerState& StateFor(const std::vector<OptimizerParamGroup>& groups) {
    CheckUsable();
    CheckGroups(groups);
    return state_;
  }

  Replica& replica() { return *replica_; }
  const OptimizerState& state() const { return state_; }
  const OwnerLink& owner() const { return *owner_; }
  const ParameterOwners& owners() const { return owners_; }
  const ClassGroups& classes() const { return classes_; }
  const ClientStepInfo& last_step() const { return last_step_; }
  StepNumber finished_step() const { return std::max(last_step_.step, owner_->finished_step()); }
  const ShardedOptimizerOptions& options() const { return options_; }

 private:
  std::unique_ptr<Replica> MakeReplica(const ParameterList& list) const {
    const absl::Span<const ReplicaRegion> linked = owner_->replica();
    if (linked.empty()) {
      if (options_.share_parameters && options_.world_size > 1) {
        throw StatusError(absl::FailedPreconditionError(
            "share_parameters needs memory that all ranks share: run them on one host, embedded or "
            "attached to a shard server, set share_parameters on all of them, and leave plane at "
            "\"auto\" or \"shm\""));
      }
      if (!memory_.flat) return Replica::MakeInPlace(list);
      absl::StatusOr<FlatMemory> flat = FlatMemory::Private(list.space);
      if (flat.ok()) return Replica::MakeFlat(list, *std::move(flat));
      if (!memory_.may_stay) throw StatusError(flat.status());
      Warn(
          absl::StrCat("all tensors stay where they are, and steps are slower than they could be: ",
                       flat.status().ToString()));
      return Replica::MakeInPlace(list);
    }
    FlatMemory memory;
    memory.regions.assign(linked.begin(), linked.end());
    memory.owner = owner_->replica_memory();
    // One copy of the parameters for all ranks: it gets rank 0's values, and only those.
    memory.has_values = owner_->resumes() || (options_.share_parameters && options_.rank != 0);
    return Replica::MakeFlat(list, std::move(memory));
  }

  // The options for the owner, which offers the tensors' memory to the other ranks where they move.
  static ShardedOptimizerOptions WithMemory(ShardedOptimizerOptions options,
                                            const MemoryChoice& memory) {
    if (!memory.flat) options.parameters_as_bucket_view = BucketView::kOff;
    return options;
  }

  void Warn(absl::string_view message) const {
    Log(LogLevel::kWarning, {"client", options_.job, options_.rank}, "%s", message);
  }

  const ShardedOptimizerOptions options_;
  ClassGroups classes_;
  ConstructedGroups groups_;
  const MemoryChoice memory_;
  const std::unique_ptr<OwnerLink> owner_;
  const std::unique_ptr<Replica> replica_;
  const GradientLayouts gradient_layouts_;
  TrainableWatch trainable_;
  const ParameterOwners owners_;
  OptimizerState state_;
  const int exceptions_ = std::uncaught_exceptions();
  ClientStepInfo last_step_;
  bool closed_ = false;
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
      impl_(std::make_unique<Impl>(prepared)) {
  impl_->MakeClasses(prepared.list, param_groups());
}

ShardedOptimizer::~ShardedOptimizer() { impl_->CloseQuietly(); }

at::Tensor ShardedOptimizer::step(LossClosure closure) {
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

const std::string& ShardedOptimizer::blob() const { return impl_->owner().blob(); }

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
  return owner_of(ValueOrThrow(impl_->owners().IndexOf(parameter)));
}

std::vector<OwnedRange> ShardedOptimizer::owner_of(int parameter) const {
  return ValueOrThrow(impl_->owners().OwnersOf(parameter));
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

NamedStateDict ShardedOptimizer::named_state_dict() const {
  return ValueOrThrow(KeyedByName(state_dict(), impl_->state().NamesOfAll()));
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

at::Tensor ShardedOptimizer::main_grad(const at::Tensor& parameter) {
  const int index = ValueOrThrow(impl_->owners().IndexOf(parameter));
  MainGradient* const gradient = impl_->replica().main_gradient(index);
  if (gradient != nullptr) return gradient->HandOut();
  throw StatusError(absl::InvalidArgumentError(
      absl::StrCat("parameter ", index, " is ", c10::toString(parameter.scalar_type()),
                   " and main_gradients is ", options().main_gradients ? "true" : "false",
                   ", expected a bfloat16 or float16 one where it is true: use parameter.grad()")));
}

torch::optim::Optimizer& ShardedOptimizer::local_optimizer(int group) const {
  return impl_->classes().OptimizerOf(group);
}

void ShardedOptimizer::zero_grad(bool set_to_none) { impl_->replica().ZeroGradients(set_to_none); }

StepNumber ShardedOptimizer::finished_step() const { return impl_->finished_step(); }

const ClientStepInfo& ShardedOptimizer::last_step() const { return impl_->last_step(); }

void ShardedOptimizer::add_param_group(const OptimizerParamGroup&) {
  throw StatusError(absl::UnimplementedError(kGroupsAreFixed));
}

void ShardedOptimizer::add_parameters(const std::vector<at::Tensor>&) {
  throw StatusError(absl::UnimplementedError(kGroupsAreFixed));
}

void ShardedOptimizer::save(torch::serialize::OutputArchive& archive) const {
  WriteArchive(state_dict(), archive);
}

void ShardedOptimizer::load(torch::serialize::InputArchive& archive) {
  impl_->StateFor(param_groups()).Load(ReadArchive(archive), kFromEveryRank, param_groups());
}

void ShardedOptimizer::Close() { impl_->Close(); }

int64_t ShardedOptimizer::state_bytes() const { return impl_->owner().state_bytes(); }

const std::string& ShardedOptimizer::owner_address() const {
  return impl_->owner().owner_address();
}

std::vector<std::string> ShardedOptimizer::owner_addresses() const {
  return ValueOrThrow(impl_->owner().owner_addresses(absl::Seconds(10)));
}

const ShardedOptimizerOptions& ShardedOptimizer::options() const { return impl_->options(); }

}  // namespace optshard

// An optimizer on the trainer's side: the tensors, and the owner of their state. What is behind
// ShardedOptimizer.
#ifndef OPTSHARD_CLIENT_OWNER_TRAINER_OPTIMIZER_H_
#define OPTSHARD_CLIENT_OWNER_TRAINER_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "client/loaded_checkpoint.h"
#include "client/owner/checkpoint_saving.h"
#include "client/owner/class_groups.h"
#include "client/owner/optimizer_parts.h"
#include "client/owner/owner_choice.h"
#include "client/owner/parameter_addition.h"
#include "client/owner/parameter_admission.h"
#include "client/owner/prepared_optimizer.h"
#include "client/owner/wait_for_trainers.h"
#include "client/replica/current_stream.h"
#include "client/replica/flat_memory.h"
#include "client/replica/memory_choice.h"
#include "client/replica/parameter_list.h"
#include "client/replica/replica.h"
#include "client/replica/replica_list.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer_options.h"
#include "client/status_error.h"
#include "common/errors.h"
#include "common/log.h"
#include "common/optimizer_spec.h"
#include "common/step_info.h"
#include "server/shard/engine/step_input.h"
#include "server/update/group_update.h"

namespace optshard {

inline constexpr char kTrainableNote[] =
    ". A frozen parameter keeps its value, its owner and its state, and goes on from there once it "
    "is unfrozen. Call refresh_trainable() after a switch to hide this message";

// Errors are thrown as StatusError; what they are, client/sharded_optimizer.h says. `groups` are
// the param groups as the user has them. Bound to the trainer's thread.
class TrainerOptimizer {
 public:
  explicit TrainerOptimizer(const PreparedOptimizer& prepared)
      : TrainerOptimizer(prepared, ClassesOf(prepared)) {}

  void MakeClasses(const ParameterList& list,
                   std::vector<torch::optim::OptimizerParamGroup>& groups) {
    parts_->classes.Make(list, parts_->owners, options_.rank, groups);
  }

  void RefreshParameters() {
    ThrowIfError(Synchronise(&OwnerLink::SyncParameters));
    without_values_.reset();
  }

  void VerifyReplicas() {
    SayingWhere("rank", options_.rank, [this] { ThrowIfError(replica_.GatherValues()); });
    ThrowIfError(
        owner_->VerifyReplicas(replica_.tensors(), replica_.regions(), options_.step_timeout));
  }

  // It is added to `groups` by all ranks, or by none.
  void Add(const ParameterAddition& given, const RuleOptions& defaults,
           std::vector<torch::optim::OptimizerParamGroup>& groups) {
    TakeGroups(groups);
    if (without_values_.has_value()) {
      // What the call before added had no values yet when that ended: perhaps it is this.
      const ParameterAddition before = *without_values_;
      GiveAddedValues();
      if (given.IsSame(before)) return;
    }
    const ParameterAdmission admission = SayingWhere("rank", options_.rank, [&] {
      ThrowIfError(replica_.Gather());
      return Admit(groups, given, defaults, parts_->spec, options_);
    });
    ClassGroups classes = parts_->classes;
    if (!given.to.has_value()) classes.AddRuleGroup();
    std::vector<torch::optim::OptimizerParamGroup> grown = groups;
    PutOn(admission.addition, grown);
    auto parts = std::make_unique<OptimizerParts>(admission.list, admission.spec, grown, classes,
                                                  owner_.get(), &options_);
    absl::StatusOr<AddedMemory> memory = MemoryForAdded(
        admission.added, options_, !owner_->replica().empty(), !replica_.regions().empty());
    if (absl::IsInvalidArgument(memory.status())) ThrowIfError(OfThisRank(memory.status()));
    ReserveFor(admission.addition, groups);
    ThrowIfError(WithAllOwners([&] {
      return owner_->AddGroups(admission.spec, parts->classes.updates(), memory.status(),
                               options_.join_timeout);
    }));
    // Where ranks share one copy of the parameters, most of them have it from another rank.
    if (!owner_->replica().empty()) {
      replica_.UseMapping(owner_->replica(), owner_->replica_memory());
    }
    replica_.Add(admission.added, MakeReplicaOfAdded(admission.added, *std::move(memory)));
    PutOn(admission.addition, groups);
    parts->state.KeepConsolidatedOf(parts_->state);
    parts_ = std::move(parts);
    added_.push_back(given);
    for (const std::string& warning : admission.list.warnings) Warn(warning);
    // A predecessor's have values.
    if (owner_->resumes()) {
      replica_.Scatter();
      return;
    }
    without_values_ = given;
    GiveAddedValues();
  }

  // What was added at the ends of `groups` through the base class, whose functions are not virtual.
  // What cannot be added stays there, and is taken the next time.
  void TakeAdditions(const RuleOptions& defaults,
                     std::vector<torch::optim::OptimizerParamGroup>& groups) {
    const std::vector<ParameterAddition> added = parts_->groups.AddedTo(groups);
    if (added.empty()) return;
    CheckUsable();
    TakeOff(added, groups);
    auto next = added.begin();
    const OptimizerParts* before = nullptr;
    try {
      for (; next != added.end(); ++next) {
        before = parts_.get();
        Add(*next, defaults, groups);
      }
    } catch (...) {
      if (parts_.get() != before) ++next;  // it is added; what follows has failed
      for (; next != added.end(); ++next) PutOn(*next, groups);
      throw;
    }
  }

  void CheckUsable() const {
    CheckWorks();
    ThrowIfError(lacks_state_);
  }

  // Also where a checkpoint is to be loaded first.
  void CheckWorks() const {
    if (closed_) {
      throw StatusError(absl::FailedPreconditionError(
          "this optimizer has been closed: it has left its job and cannot step any more"));
    }
    ThrowIfError(owner_->failure());
  }

  void CheckGroups(const std::vector<torch::optim::OptimizerParamGroup>& groups) const {
    parts_->groups.CheckParameters(groups);
  }

  // Where this optimizer is broken, and its state has ended with it: what another one is made of,
  // to take its place in this process and load that checkpoint. Errors as LoadCheckpoint's, so far
  // as this rank can tell without the others: it gives up what it still has for it.
  absl::optional<PreparedOptimizer> MakeRoom(
      const std::string& directory, const std::string& name,
      const std::vector<torch::optim::OptimizerParamGroup>& groups) {
    if (closed_ || !owner_->MakeRoom()) return absl::nullopt;
    for (const std::shared_ptr<TrainerUpdate>& update : parts_->classes.updates()) {
      if (update != nullptr) return absl::nullopt;
    }
    CheckGroups(groups);
    parts_->state.CheckLoadable(directory, name);
    PreparedOptimizer other = prepared_;
    other.replaces = true;
    // Those who still write to the old memory, because they were stopped meanwhile, reach none of
    // the new one.
    if (!owner_->replica().empty()) other.options.parameters_as_bucket_view = BucketView::kOn;
    return other;
  }

  // Has the groups of that one from now on, like all ranks, and ends it. There is no state until a
  // checkpoint is loaded.
  void TakePlaceOf(TrainerOptimizer& broken) {
    lacks_state_ =
        errors::WithContext(broken.owner_->failure(),
                            "the optimizer has begun anew, and no checkpoint was loaded since");
    std::vector<torch::optim::OptimizerParamGroup> groups = prepared_.groups;
    for (const ParameterAddition& each : broken.added_) Add(each, prepared_.defaults, groups);
    replica_.TakeHandedOut(broken.replica_);
    if (broken.saving_.is_pending()) {
      Warn("whether the checkpoint that was asked for before was saved is not known");
    }
    // Last: the job's coordinator may be in this process.
    broken.owner_->Stop(options_.close_timeout).IgnoreError();
  }

  // Before the other ranks are asked for anything: they go on waiting while this one is corrected.
  void TakeGroups(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
    parts_->groups.CheckParameters(groups);
    parts_->groups.TakeHyperparameters(groups);
  }

  void Step(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
    TakeGroups(groups);
    // Their owners went away before all ranks had them.
    if (without_values_.has_value()) GiveAddedValues();
    SayingWhere("rank", options_.rank, [this] {
      const std::vector<Hyperparameters>& values = parts_->groups.complete();
      ThrowIfError(replica_.Gather(ValueOrThrow(parts_->gradient_layouts.Check(values))));
    });
    const std::string switched = parts_->trainable.TakeChanges();
    if (!switched.empty()) Warn(absl::StrCat(switched, kTrainableNote));
    owner_->KeepParameters(replica_.parameter_memory());
    StepInput input;
    input.replica = replica_.tensors();
    input.regions = replica_.regions();
    input.hyperparameters = parts_->groups.taken();
    input.timeout = options_.step_timeout;
    const absl::StatusOr<StepInfo> info =
        options_.wait_for_trainers ? StepWithAllTrainers(*owner_, input) : owner_->Step(input);
    replica_.Scatter();
    ThrowIfError(info.status());
    last_step_ = *info;
    gradients_copied_ = replica_.gradients_copied();
  }

  void SaveCheckpoint(const std::string& directory, const std::vector<std::string>& labels) {
    ThrowIfError(saving_.Save(directory, labels, finished_step()));
  }

  void ExportModel(const std::string& directory, int64_t shard_bytes) {
    ThrowIfError(saving_.Export(directory, shard_bytes, finished_step()));
  }

  std::string WaitCheckpoint() { return ValueOrThrow(saving_.Wait()); }

  void Close() {
    if (closed_) return;
    ThrowIfError(owner_->failure());
    // The owners must be there for it.
    const absl::Status saved = saving_.Wait().status();
    closed_ = true;
    ThrowIfError(owner_->Stop(options_.close_timeout));
    ThrowIfError(saved);
  }

  // For the destructor.
  void CloseQuietly() {
    if (closed_ || std::uncaught_exceptions() > exceptions_ || !owner_->failure().ok()) {
      return;
    }
    const absl::Status saved = saving_.Wait().status();
    if (!saved.ok()) Warn(absl::StrCat("saving a checkpoint: ", saved.ToString()));
    const absl::Status stopped = owner_->Stop(options_.close_timeout);
    if (!stopped.ok()) Warn(absl::StrCat("leaving the job: ", stopped.ToString()));
  }

  void RefreshTrainable() { parts_->trainable.TakeChanges(); }

  void SetBlob(absl::string_view blob) { ThrowIfError(owner_->SetBlob(blob)); }

  OptimizerState& StateFor(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
    CheckUsable();
    CheckGroups(groups);
    return parts_->state;
  }

  LoadedCheckpoint LoadCheckpoint(const std::string& directory, const std::string& name,
                                  std::vector<torch::optim::OptimizerParamGroup>& groups) {
    std::string blob;
    const OptimizerState::ParameterCalls calls = {
        [this] { return replica_.Gather(); },
        [this](const OwnerLink::LoadedStep& loaded, absl::Duration timeout) {
          const auto finish = [&] {
            return owner_->FinishLoading(loaded, replica_.tensors(), replica_.regions(), timeout);
          };
          return AfterSynchronising(
              options_.wait_for_trainers ? CallOnceOwnersAreBack(timeout, finish) : finish());
        }};
    CheckWorks();
    CheckGroups(groups);
    LoadedCheckpoint loaded = parts_->state.LoadCheckpoint(directory, name, calls, groups, &blob);
    lacks_state_ = absl::OkStatus();
    blob_ = std::move(blob);
    without_values_.reset();
    return loaded;
  }

  // The predecessor's, or that of the checkpoint that was loaded.
  const std::string& blob() const { return blob_.has_value() ? *blob_ : owner_->blob(); }

  ReplicaList& replica() { return replica_; }
  const OptimizerState& state() const { return parts_->state; }
  const OwnerLink& owner() const { return *owner_; }
  const ParameterOwners& owners() const { return parts_->owners; }
  const ClassGroups& classes() const { return parts_->classes; }
  const StepInfo& last_step() const { return last_step_; }
  int64_t gradients_copied() const { return gradients_copied_; }  // in it
  StepNumber finished_step() const { return owner_->finished_step(); }
  const ShardedOptimizerOptions& options() const { return options_; }

 private:
  TrainerOptimizer(const PreparedOptimizer& prepared, const ClassGroups& classes)
      : prepared_(prepared),
        options_(prepared_.options),
        memory_(SayingWhere("rank", options_.rank,
                            [&] { return ValueOrThrow(ChooseMemory(options_, prepared.list)); })),
        owner_(
            ValueOrThrow(StartOwner(WithMemory(options_, memory_), prepared.spec, classes.updates(),
                                    prepared.replaces, DeviceOf(prepared.list)))),
        parts_(std::make_unique<OptimizerParts>(prepared.list, prepared.spec, prepared.groups,
                                                classes, owner_.get(), &options_)) {
    replica_.Add(prepared.list, MakeReplica(prepared.list));
    for (const std::string& warning : prepared.list.empty_group_warnings) Warn(warning);
    for (const std::string& warning : prepared.list.warnings) Warn(warning);
    if (!memory_.warning.empty()) Warn(memory_.warning);
    if (!owner_->resumes()) RefreshParameters();
  }

  // Those of the rules are checked before anything is asked of other ranks.
  static ClassGroups ClassesOf(const PreparedOptimizer& prepared) {
    ClassGroups classes(prepared.groups);
    SayingWhere("rank", prepared.options.rank,
                [&] { ThrowIfError(ValidateGroups(prepared.spec, classes.updates()).status()); });
    return classes;
  }

  using Synchronisation = absl::Status (OwnerLink::*)(absl::Span<const ReplicaTensor> replica,
                                                      absl::Span<const ReplicaRegion> regions,
                                                      absl::Duration timeout);
  absl::Status Synchronise(Synchronisation call) {
    SayingWhere("rank", options_.rank, [this] { ThrowIfError(replica_.Gather()); });
    return AfterSynchronising(
        (*owner_.*call)(replica_.tensors(), replica_.regions(), options_.join_timeout));
  }

  // What all ranks have been given lies where it was gathered.
  absl::Status AfterSynchronising(const absl::Status& synced) {
    replica_.Scatter();
    if (!synced.ok()) return synced;
    replica_.versions().ExpectNone();
    owner_->KeepParameters(replica_.parameter_memory());
    return synced;
  }

  void GiveAddedValues() {
    ThrowIfError(WithAllOwners([this] { return Synchronise(&OwnerLink::GiveAddedValues); }));
    without_values_.reset();
  }

  // Where it may wait, it calls again as long as owners are away.
  template <typename Call>
  absl::Status WithAllOwners(const Call& call) const {
    if (!options_.wait_for_trainers) return call();
    return CallWithAllTrainers(options_.join_timeout, call);
  }

  absl::Status OfThisRank(const absl::Status& status) const {
    return errors::WithContext(status, absl::StrCat("rank ", options_.rank));
  }

  // The owner has the memory of the added tensors now, where it has that of the others.
  std::unique_ptr<Replica> MakeReplicaOfAdded(const ParameterList& added,
                                              AddedMemory memory) const {
    if (!memory.warning.empty()) Warn(memory.warning);
    const absl::Span<const ReplicaRegion> linked = owner_->replica();
    if (linked.empty()) {
      if (!memory.flat.has_value()) return Replica::MakeInPlace(added);
      return Replica::MakeFlat(added, *std::move(memory.flat));
    }
    FlatMemory flat;
    const absl::Span<const ReplicaRegion> regions = linked.subspan(replica_.regions().size());
    flat.regions.assign(regions.begin(), regions.end());
    flat.owner = owner_->replica_memory();
    flat.has_values = owner_->resumes() || (options_.share_parameters && options_.rank != 0);
    return Replica::MakeFlat(added, std::move(flat));
  }

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
      absl::StatusOr<FlatMemory> flat = FlatMemory::Private(list);
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

  static TrainerDevice DeviceOf(const ParameterList& list) {
    return {list.device.str(), [device = list.device] { return CurrentStream(device); }};
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

  const PreparedOptimizer prepared_;
  const ShardedOptimizerOptions& options_;
  const MemoryChoice memory_;
  const std::unique_ptr<OwnerLink> owner_;
  CheckpointSaving saving_{owner_.get(), &options_};
  ReplicaList replica_;
  std::unique_ptr<OptimizerParts> parts_;
  const int exceptions_ = std::uncaught_exceptions();
  StepInfo last_step_;
  absl::optional<std::string> blob_;  // of the checkpoint that was loaded
  int64_t gradients_copied_ = 0;
  bool closed_ = false;
  std::vector<ParameterAddition> added_;              // since construction
  absl::optional<ParameterAddition> without_values_;  // what all ranks have added last
  absl::Status lacks_state_;  // why a checkpoint is to be loaded before anything else
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_TRAINER_OPTIMIZER_H_

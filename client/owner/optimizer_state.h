// The optimizer state as a trainer sees it: of one parameter here, of this rank, and of all ranks.
#ifndef OPTSHARD_CLIENT_OWNER_OPTIMIZER_STATE_H_
#define OPTSHARD_CLIENT_OWNER_OPTIMIZER_STATE_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "client/loaded_checkpoint.h"
#include "client/owner/class_groups.h"
#include "client/owner/owner_link.h"
#include "client/owner/parameter_state.h"
#include "client/owner/rank_exchange.h"
#include "client/owner/state_layout.h"
#include "client/replica/parameter_owners.h"
#include "client/sharded_optimizer_options.h"
#include "client/state_dict.h"
#include "common/ids.h"
#include "common/state_options.h"
#include "server/shard/state/replacing.h"
#include "server/update/group_update.h"

namespace optshard {

struct CheckpointLoadOptions;

// Errors are thrown as StatusError; what they are, sharded_optimizer.h says. `groups` are always
// those of the construction, with their present options. Bound to the trainer's thread.
class OptimizerState {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  struct Options {
    OwnerLink* owner = nullptr;
    const ParameterOwners* owners = nullptr;
    const ClassGroups* classes = nullptr;
    const std::vector<GroupUpdate>* updates = nullptr;  // by group
    StateOptions state;
    const ShardedOptimizerOptions* client = nullptr;
    std::vector<at::Tensor> parameters;  // by index
  };                                     // what is pointed to outlives this

  explicit OptimizerState(Options options);

  StateSlots Read(const at::Tensor& parameter) const;
  void Write(const at::Tensor& parameter, const StateSlots& slots) const;

  void Consolidate(Rank to, const Groups& groups);
  const StateDict& consolidated() const;
  StateDict Local(const Groups& groups) const;
  StateDict ShareOf(Rank rank, const StateDict& whole) const;
  // `given` is looked at on rank `from`, or with kFromEveryRank on all. Its options go into
  // `groups`.
  void Load(const absl::StatusOr<StateDict>& given, Rank from, Groups& groups);

  // As CheckLoadable of checkpoint_loading.h.
  void CheckLoadable(const std::string& directory, const std::string& name) const;

  // What LoadCheckpoint does with the tensors; CheckpointLoadOptions says what.
  struct ParameterCalls {
    std::function<absl::Status()> check;
    std::function<absl::Status(const OwnerLink::LoadedStep&, absl::Duration timeout)> finish;
  };
  // `blob` gets this rank's.
  LoadedCheckpoint LoadCheckpoint(const std::string& directory, const std::string& name,
                                  const ParameterCalls& calls, Groups& groups, std::string* blob);

  // What `before` has consolidated.
  void KeepConsolidatedOf(OptimizerState& before) {
    consolidated_ = std::move(before.consolidated_);
    consolidated_names_ = std::move(before.consolidated_names_);
  }
  NamedStateDict ConsolidatedByName() const;

  // The parameters' names, over the groups in order.
  std::vector<std::string> NamesOfAll() const;

 private:
  Rank rank() const { return options_.client->rank; }
  RankExchange::Options ExchangeFor(ShareCall call) const;
  CheckpointLoadOptions CheckpointsOfThis() const;  // without what an attempt needs
  // As CallInAttempts, where that may wait; else one attempt. An attempt throws.
  void InAttempts(const RankExchange::Options& options,
                  const std::function<void(RankExchange&)>& attempt) const;
  void CheckRulesStepAll() const;
  absl::Status CheckOwnState() const;
  std::vector<StateDict::Group> GroupsOf(const Groups& groups) const;
  void ConsolidateOnce(Rank to, const Groups& groups, RankExchange& exchange);
  // What all groups have then.
  std::vector<Hyperparameters> LoadOnce(const absl::StatusOr<StateDict>& given, Rank from,
                                        const std::vector<Hyperparameters>& present,
                                        RankExchange& exchange) const;
  // An attempt at a load. Where the last one fails, what is staged is dropped.
  void LoadInAttempts(Replacing what, const std::function<void(RankExchange&)>& attempt) const;
  // What all groups have with it.
  std::vector<Hyperparameters> OptionsFrom(Rank from, const StateDict& whole,
                                           const std::vector<Hyperparameters>& present,
                                           RankExchange& exchange) const;
  void StageShares(Rank from, const StateDict& whole,
                   const std::vector<Hyperparameters>& hyperparameters,
                   RankExchange& exchange) const;
  StateAccess& StateHere() const;
  void SetAllOptions(const std::vector<Hyperparameters>& hyperparameters, Groups& groups) const;

  const Options options_;
  const StateLayout layout_;
  absl::optional<StateDict> consolidated_;
  std::vector<std::string> consolidated_names_;  // of the parameters that there were then
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_OPTIMIZER_STATE_H_

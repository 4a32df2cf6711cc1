#include "client/owner/optimizer_state.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/owner/call_attempts.h"
#include "client/owner/caught_errors.h"
#include "client/owner/checkpoint_loading.h"
#include "client/owner/group_values.h"
#include "client/owner/state_collection.h"
#include "client/owner/state_consolidation.h"
#include "client/owner/state_loading.h"
#include "client/owner/state_sending.h"
#include "client/owner/state_shares.h"
#include "client/rule_options.h"
#include "client/status_error.h"
#include "common/errors.h"
#include "common/hyperparameters.h"

namespace optshard {
namespace {

using torch::optim::OptimizerParamGroup;

// The options of the group become these; whoever holds a reference to them sees it.
void SetOptions(OptimizerParamGroup& group, const std::string& rule,
                const Hyperparameters& hyperparameters) {
  auto* options = dynamic_cast<RuleOptions*>(&group.options());
  if (options == nullptr) {
    group.set_options(std::make_unique<RuleOptions>(rule));
    options = static_cast<RuleOptions*>(&group.options());
  }
  for (const auto& [name, value] : hyperparameters.values()) {
    absl::visit([options, name = name](const auto& each) { options->Set(name, each); }, value);
  }
}

StateLayout LayoutOf(const OptimizerState::Options& options) {
  return {options.owners, options.updates, options.state,
          options.client->policy == PartitionPolicy::kReplicated};
}

}  // namespace

OptimizerState::OptimizerState(Options options)
    : options_(std::move(options)), layout_(LayoutOf(options_)) {}

StateSlots OptimizerState::Read(const at::Tensor& parameter) const {
  options_.classes->CheckStateIsKnown(*options_.owners, parameter);
  return ValueOrThrow(ReadState(*options_.owner, *options_.owners, rank(), parameter,
                                options_.client->step_timeout));
}

void OptimizerState::Write(const at::Tensor& parameter, const StateSlots& slots) const {
  options_.classes->CheckStateIsKnown(*options_.owners, parameter);
  ThrowIfError(WriteState(*options_.owner, *options_.owners, rank(), parameter, slots,
                          options_.client->step_timeout));
}

RankExchange::Options OptimizerState::ExchangeFor(ShareCall call) const {
  RankExchange::Options exchange;
  exchange.owner = options_.owner;
  exchange.call = call;
  exchange.rank = rank();
  exchange.world_size = options_.owners->world_size();
  exchange.timeout = options_.client->step_timeout;
  return exchange;
}

void OptimizerState::InAttempts(const RankExchange::Options& options,
                                const std::function<void(RankExchange&)>& attempt) const {
  const auto tried = [&](RankExchange& exchange) {
    return Trying([&] {
      attempt(exchange);
      return absl::OkStatus();
    });
  };
  if (options_.client->wait_for_trainers) {
    ThrowIfError(CallInAttempts(options, tried));
    return;
  }
  RankExchange exchange(options);
  ThrowIfError(tried(exchange));
}

void OptimizerState::CheckRulesStepAll() const {
  for (const at::Tensor& parameter : options_.parameters) {
    options_.classes->CheckStateIsKnown(*options_.owners, parameter);
  }
}

std::vector<std::string> OptimizerState::NamesOfAll() const {
  std::vector<std::string> names;
  const ParameterSpace& space = options_.owners->space();
  for (int position = 0; position < space.parameter_count(); ++position) {
    names.push_back(space.parameter(space.index_at(position)).name);
  }
  return names;
}

NamedStateDict OptimizerState::ConsolidatedByName() const {
  return ValueOrThrow(KeyedByName(consolidated(), consolidated_names_));
}

// With all parameters.
std::vector<StateDict::Group> OptimizerState::GroupsOf(const Groups& groups) const {
  std::vector<StateDict::Group> result;
  const std::vector<std::string> all_names = NamesOfAll();
  int64_t next = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    const RuleOptions options = RuleOptions::From(groups[g].options());
    StateDict::Group group;
    group.options = ValuesOf(*(*options_.updates)[g].rule, options.values());
    std::vector<std::string> names;
    for (size_t i = 0; i < groups[g].params().size(); ++i) {
      names.push_back(all_names[next]);
      group.params.push_back(next++);
    }
    if (!options_.client->parameter_names.empty()) group.options.emplace("param_names", names);
    result.push_back(std::move(group));
  }
  return result;
}

// DATA_LOSS where it was replaced only in part.
absl::Status OptimizerState::CheckOwnState() const {
  const std::vector<int> owned = ParametersOf(*options_.owners, rank());
  if (owned.empty()) return absl::OkStatus();
  const absl::StatusOr<StateAccess*> state = options_.owner->state(options_.client->step_timeout);
  if (!state.ok()) return state.status();
  const at::Tensor count = at::empty({1}, at::TensorOptions(at::kDouble));
  const int step = static_cast<int>(layout_.Slots(owned.front()).size()) - 1;
  return ReadElements(**state, owned.front(), step, 0, count);
}

void OptimizerState::Consolidate(Rank to, const Groups& groups) {
  CheckRulesStepAll();
  InAttempts(ExchangeFor(ShareCall::kConsolidate),
             [&](RankExchange& exchange) { ConsolidateOnce(to, groups, exchange); });
}

void OptimizerState::ConsolidateOnce(Rank to, const Groups& groups, RankExchange& exchange) {
  const int world_size = options_.owners->world_size();
  ThrowIfError(exchange.Agree(Trying([&] {
    return to >= kFromEveryRank && to < world_size
               ? CheckOwnState()
               : absl::InvalidArgumentError(absl::StrCat("state is to be consolidated on rank ", to,
                                                         ", expected one from 0 to ",
                                                         world_size - 1, ", or -1 for all"));
  })));
  ThrowIfError(exchange.Compare({absl::StrCat("the rank that state is consolidated on ", to)}));
  consolidated_.reset();  // before there are two; on the other ranks it is out of date
  CollectionOptions collection;
  collection.owner = options_.owner;
  collection.exchange = &exchange;
  collection.layout = &layout_;
  collection.job = options_.client->job;
  collection.optimizer = options_.client->optimizer;
  collection.to = to;
  auto collected = ValueOrThrow(CollectState(collection));
  if (!collected.has_value()) collected = ValueOrThrow(ConsolidateState(exchange, layout_, to));
  if (to != kFromEveryRank && to != rank()) return;
  StateDict dict;
  for (auto& [index, values] : *collected) {
    const int position = options_.owners->space().position_of(static_cast<int>(index));
    dict.state.emplace(position, std::move(values));
  }
  dict.param_groups = GroupsOf(groups);
  consolidated_ = std::move(dict);
  consolidated_names_ = NamesOfAll();
}

const StateDict& OptimizerState::consolidated() const {
  if (consolidated_.has_value()) return *consolidated_;
  throw StatusError(absl::FailedPreconditionError(
      absl::StrCat("Optimizer state has not been consolidated on this rank. Please call "
                   "`consolidate_state_dict(to=",
                   rank(), ")` on all ranks beforehand if you meant to save the global state.")));
}

StateDict OptimizerState::Local(const Groups& groups) const {
  CheckRulesStepAll();
  StateDict none;
  none.param_groups = GroupsOf(groups);
  StateDict local = ValueOrThrow(CutShare(none, *options_.owners, rank()));
  int64_t next = 0;
  for (const int parameter : ParametersOf(*options_.owners, rank())) {
    const int64_t index = next++;
    StateSlots slots = Read(options_.parameters[parameter]);
    if (slots.at(kStepSlot).item<double>() == 0) continue;
    for (auto& [name, tensor] : slots) local.state[index].emplace(name, std::move(tensor));
  }
  return local;
}

StateDict OptimizerState::ShareOf(Rank rank, const StateDict& whole) const {
  return ValueOrThrow(CutShare(whole, *options_.owners, rank));
}

StateAccess& OptimizerState::StateHere() const {
  return *ValueOrThrow(options_.owner->state(options_.client->step_timeout));
}

void OptimizerState::LoadInAttempts(Replacing what,
                                    const std::function<void(RankExchange&)>& attempt) const {
  RankExchange::Options options = ExchangeFor(ShareCall::kLoad);
  options.replaces_torn_state = what == Replacing::kAll;
  try {
    InAttempts(options, attempt);
  } catch (const StatusError& error) {
    // Nothing is staged any more where the owner has ended; the next one would be waited for.
    const absl::Status& failed = error.status();
    if (!errors::IsOwnerAway(failed) && !errors::IsTornStep(failed) &&
        options_.owner->failure().ok()) {
      Trying([this] { return StateHere().DropStaged(); }).IgnoreError();
    }
    throw;
  }
}

void OptimizerState::Load(const absl::StatusOr<StateDict>& given, Rank from, Groups& groups) {
  CheckRulesStepAll();
  std::vector<Hyperparameters> present;
  for (const OptimizerParamGroup& group : groups) {
    present.push_back(RuleOptions::From(group.options()).values());
  }
  std::vector<Hyperparameters> loaded;
  LoadInAttempts(Replacing::kState, [&](RankExchange& exchange) {
    loaded = LoadOnce(given, from, present, exchange);
  });
  SetAllOptions(loaded, groups);
}

std::vector<Hyperparameters> OptimizerState::LoadOnce(const absl::StatusOr<StateDict>& given,
                                                      Rank from,
                                                      const std::vector<Hyperparameters>& present,
                                                      RankExchange& exchange) const {
  ThrowIfError(exchange.Compare({absl::StrCat("the rank whose state dict is loaded ", from)}));
  // 1. What is given can be loaded.
  const bool gives = from == kFromEveryRank || from == rank();
  StateDict whole;
  ThrowIfError(exchange.Agree(Trying([&]() -> absl::Status {
    if (from < kFromEveryRank || from >= options_.owners->world_size()) {
      return absl::InvalidArgumentError(absl::StrCat("the state dict of rank ", from,
                                                     " is to be loaded, and there are ",
                                                     options_.owners->world_size(), " ranks"));
    }
    if (!gives) return absl::OkStatus();
    if (!given.ok()) return given.status();
    absl::StatusOr<StateDict> checked = CheckedStateDict(*given, layout_);
    if (!checked.ok()) return checked.status();
    whole = *std::move(checked);
    return CheckedHyperparameters(whole, layout_, present).status();
  })));
  // 2. It is the same for all.
  if (from == kFromEveryRank) {
    std::vector<std::string> lines;
    ThrowIfError(exchange.Agree(Trying([&] {
      lines = DigestLines(whole);
      return absl::OkStatus();
    })));
    ThrowIfError(exchange.Compare(lines));
  }
  std::vector<Hyperparameters> hyperparameters = OptionsFrom(from, whole, present, exchange);
  // 3. Every rank stages its share.
  ThrowIfError(exchange.Agree(Trying([&] { return StateHere().BeginStaging(Replacing::kState); })));
  StageShares(from, whole, hyperparameters, exchange);
  // 4. All have. It takes the place of what there is on all of them, or on none.
  ThrowIfError(options_.owner->ReplaceState(exchange.options().timeout));
  return hyperparameters;
}

std::vector<Hyperparameters> OptimizerState::OptionsFrom(
    Rank from, const StateDict& whole, const std::vector<Hyperparameters>& present,
    RankExchange& exchange) const {
  StateDict options;
  std::string bytes;
  if (from == kFromEveryRank || from == rank()) options.param_groups = whole.param_groups;
  if (from != kFromEveryRank) {
    ThrowIfError(exchange.Agree(Trying([&] {
      if (from != rank()) return absl::OkStatus();
      const std::vector<char> pickled = torch::jit::pickle_save(ToIValue(options));
      bytes.assign(pickled.begin(), pickled.end());
      return absl::OkStatus();
    })));
    ThrowIfError(exchange.Send(from, kFromEveryRank, &bytes));
  }
  absl::StatusOr<std::vector<Hyperparameters>> all = std::vector<Hyperparameters>();
  ThrowIfError(exchange.Agree(Trying([&] {
    if (from != kFromEveryRank && from != rank()) {
      options = ValueOrThrow(StateDictFromIValue(
          torch::jit::pickle_load(std::vector<char>(bytes.begin(), bytes.end()))));
    }
    all = CheckedHyperparameters(options, layout_, present);
    return all.status();
  })));
  return *std::move(all);
}

// Owner by owner, where one rank has it all.
void OptimizerState::StageShares(Rank from, const StateDict& whole,
                                 const std::vector<Hyperparameters>& hyperparameters,
                                 RankExchange& exchange) const {
  const bool has_whole = from == kFromEveryRank || from == rank();
  GivenSlots sent;
  for (Rank to = 0; from != kFromEveryRank && to < exchange.options().world_size; ++to) {
    if (to == from) continue;
    GivenSlots given;
    ThrowIfError(SendState({&exchange, &layout_, from, to}, whole,
                           to == rank() ? &StateHere() : nullptr, &given));
    if (to == rank()) sent = std::move(given);
  }
  const auto is_given = [&](int parameter, int slot) {
    if (!has_whole) return sent.count({parameter, slot}) != 0;
    return GivenTensor(whole, layout_, parameter, layout_.Slots(parameter)[slot]) != nullptr;
  };
  ThrowIfError(exchange.Agree(Trying([&] {
    StateAccess& state = StateHere();
    absl::Status staged;
    if (has_whole) staged = StageGiven(state, layout_, rank(), whole);
    if (!staged.ok()) return staged;
    return StageFirstValues(state, layout_, rank(), is_given, options_.parameters, hyperparameters);
  })));
}

void OptimizerState::SetAllOptions(const std::vector<Hyperparameters>& hyperparameters,
                                   Groups& groups) const {
  for (size_t g = 0; g < groups.size(); ++g) {
    SetOptions(groups[g], (*options_.updates)[g].rule->spec().name, hyperparameters[g]);
  }
}

CheckpointLoadOptions OptimizerState::CheckpointsOfThis() const {
  CheckpointLoadOptions load;
  load.layout = &layout_;
  load.job = options_.client->job;
  load.optimizer = options_.client->optimizer;
  return load;
}

void OptimizerState::CheckLoadable(const std::string& directory, const std::string& name) const {
  RankExchange exchange(ExchangeFor(ShareCall::kLoad));
  CheckpointLoadOptions load = CheckpointsOfThis();
  load.exchange = &exchange;
  ThrowIfError(optshard::CheckLoadable(load, directory, name));
}

LoadedCheckpoint OptimizerState::LoadCheckpoint(const std::string& directory,
                                                const std::string& name,
                                                const ParameterCalls& calls, Groups& groups,
                                                std::string* blob) {
  CheckRulesStepAll();
  CheckpointLoadOptions load = CheckpointsOfThis();
  load.check_parameters = calls.check;
  load.finish = calls.finish;
  CheckpointLoad done;
  LoadInAttempts(Replacing::kAll, [&](RankExchange& exchange) {
    load.exchange = &exchange;
    done = ValueOrThrow(optshard::LoadCheckpoint(load, directory, name));
  });
  SetAllOptions(done.hyperparameters, groups);
  *blob = std::move(done.blob);
  return std::move(done.loaded);
}

}  // namespace optshard

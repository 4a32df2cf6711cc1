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
#include "client/owner/state_shares.h"
#include "client/owner/wait_for_trainers.h"
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

void OptimizerState::InAttempts(ShareCall call,
                                const std::function<void(RankExchange&)>& attempt) const {
  const auto tried = [&](RankExchange& exchange) {
    return Trying([&] {
      attempt(exchange);
      return absl::OkStatus();
    });
  };
  const RankExchange::Options options = ExchangeFor(call);
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
  InAttempts(ShareCall::kConsolidate,
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

// Owner by owner: one share is in the sender's memory beside the dict, and in its owner's, twice
// for a moment.
absl::StatusOr<StateDict> OptimizerState::ReceiveShare(RankExchange& exchange, Rank from,
                                                       const StateDict& whole) const {
  absl::StatusOr<StateDict> own = StateDict();
  const bool gives = rank() == from;
  for (Rank to = 0; to < options_.owners->world_size(); ++to) {
    if (to == from) {
      if (!gives) continue;
      const absl::Status cut = Trying([&] {
        own = CutShare(whole, *options_.owners, to);
        return own.status();
      });
      if (!cut.ok()) own = cut;
      continue;
    }
    std::string bytes;
    absl::Status made;
    if (gives) {
      made = Trying([&] {
        const absl::StatusOr<StateDict> share = CutShare(whole, *options_.owners, to);
        if (!share.ok()) return share.status();
        const std::vector<char> pickled = torch::jit::pickle_save(ToIValue(*share));
        bytes.assign(pickled.begin(), pickled.end());
        return absl::OkStatus();
      });
    }
    absl::Status agreed = exchange.Agree(made);
    if (agreed.ok()) agreed = exchange.Send(from, to, &bytes);
    ThrowIfError(agreed);  // on all ranks
    if (to != rank()) continue;
    const absl::Status taken = Trying([&] {
      const std::vector<char> pickled(bytes.begin(), bytes.end());
      own = StateDictFromIValue(torch::jit::pickle_load(pickled));
      return own.status();
    });
    if (!taken.ok()) own = taken;
  }
  return own;
}

absl::Status OptimizerState::WriteOwn(const StateDict& share,
                                      const std::vector<Hyperparameters>& hyperparameters) const {
  const absl::StatusOr<StateAccess*> state = options_.owner->state(options_.client->step_timeout);
  if (!state.ok()) return state.status();
  return WriteShare(**state, layout_, rank(), share, options_.parameters, hyperparameters);
}

absl::Status OptimizerState::SetReplacing(Replacing what) const {
  const absl::StatusOr<StateAccess*> state = options_.owner->state(options_.client->step_timeout);
  return state.ok() ? (*state)->SetReplacing(what) : state.status();
}

// The others may step already: where this rank's server is lost, its successor is asked.
absl::Status OptimizerState::EndReplacing() const {
  const auto end = [this] { return SetReplacing(Replacing::kNothing); };
  return options_.client->wait_for_trainers
             ? CallWithAllTrainers(options_.client->step_timeout, end)
             : end();
}

void OptimizerState::Load(const absl::StatusOr<StateDict>& given, Rank from, Groups& groups) {
  CheckRulesStepAll();
  std::vector<Hyperparameters> present;
  for (const OptimizerParamGroup& group : groups) {
    present.push_back(RuleOptions::From(group.options()).values());
  }
  std::vector<Hyperparameters> loaded;
  InAttempts(ShareCall::kLoad,
             [&](RankExchange& exchange) { loaded = LoadOnce(given, from, present, exchange); });
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
  absl::StatusOr<StateDict> share = StateDict();
  if (from == kFromEveryRank) {
    std::vector<std::string> lines;
    ThrowIfError(exchange.Agree(Trying([&] {
      lines = DigestLines(whole);
      share = CutShare(whole, *options_.owners, rank());
      return share.status();
    })));
    ThrowIfError(exchange.Compare(lines));
  } else {
    share = ReceiveShare(exchange, from, whole);
  }
  // 3. Every rank has its share. Only now anything changes, and only a rank that dies or has no
  // memory left can end that.
  absl::StatusOr<std::vector<Hyperparameters>> hyperparameters = std::vector<Hyperparameters>();
  ThrowIfError(exchange.Agree(Trying([&] {
    hyperparameters =
        share.ok() ? CheckedHyperparameters(*share, layout_, present) : share.status();
    return hyperparameters.status();
  })));
  // Each rank's state is that of no step from before the others write until after they have: what
  // reads all ranks meanwhile gets the old state of all, or the new one. Where a rank fails it
  // stays marked, until the state is loaded as a whole.
  ThrowIfError(exchange.Agree(Trying([&] { return SetReplacing(Replacing::kState); })));
  ThrowIfError(exchange.Agree(Trying([&] { return WriteOwn(*share, *hyperparameters); })));
  ThrowIfError(EndReplacing());
  return *std::move(hyperparameters);
}

void OptimizerState::SetAllOptions(const std::vector<Hyperparameters>& hyperparameters,
                                   Groups& groups) const {
  for (size_t g = 0; g < groups.size(); ++g) {
    SetOptions(groups[g], (*options_.updates)[g].rule->spec().name, hyperparameters[g]);
  }
}

LoadedCheckpoint OptimizerState::LoadCheckpoint(const std::string& directory,
                                                const std::string& name,
                                                const ParameterCalls& calls, Groups& groups,
                                                std::string* blob) {
  CheckRulesStepAll();
  CheckpointLoadOptions load;
  load.layout = &layout_;
  load.job = options_.client->job;
  load.optimizer = options_.client->optimizer;
  load.parameters = options_.parameters;
  load.check_parameters = calls.check;
  load.synchronise = calls.synchronise;
  CheckpointLoad done;
  InAttempts(ShareCall::kLoad, [&](RankExchange& exchange) {
    load.exchange = &exchange;
    done = ValueOrThrow(optshard::LoadCheckpoint(load, directory, name));
  });
  SetAllOptions(done.hyperparameters, groups);
  *blob = std::move(done.blob);
  return std::move(done.loaded);
}

}  // namespace optshard

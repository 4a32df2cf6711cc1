#include "tests/server/node/node_trainer.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/owner/attached_owner.h"
#include "common/errors.h"
#include "common/gradient_mode.h"
#include "common/group_rule.h"
#include "common/memory_layout.h"
#include "common/optimizer_spec.h"
#include "common/step_info.h"
#include "server/shard/engine/step_input.h"
#include "server/update/group_update.h"
#include "tests/server/shard/engine/engine_rig.h"
#include "tests/server/shard/engine/step_oracle.h"
#include "tests/server/shard/engine/test_replica.h"
#include "tests/testing/state_share.h"

namespace optshard::testing {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(2);

Hyperparameters Group(double rate) {
  Hyperparameters group;
  group.Set("lr", rate);
  return group;
}

constexpr int kMostAdded = 3;

const ParameterSpace& WholeSpace() {
  static const ParameterSpace space = SpecOfNodes(1, kMostAdded).space;
  return space;
}

}  // namespace

// With masters, which a successor has to find, too.
StateOptions StateOfNodes() {
  StateOptions state;
  state.master_weights = true;
  return state;
}

// Each group has a rule of its own.
OptimizerSpec SpecOfNodes(int world_size, int added) {
  OptimizerSpec spec;
  spec.world_size = world_size;
  std::vector<GroupSpec> groups = MixedDTypeSpace().groups();
  spec.rules = {{"adam", Group(0.01)}, {"lion", Group(0.01)}};
  for (int i = 1; i <= added; ++i) {
    ParameterSpec half;
    half.name = absl::StrCat("half.", i);
    half.shape = {int64_t{700} * i, 5};
    half.dtype = DType::kBFloat16;
    ParameterSpec whole;
    whole.name = absl::StrCat("whole.", i);
    whole.shape = {1500};
    groups.push_back({{half, whole}, i});
    spec.rules.push_back({i % 2 == 1 ? "nadam" : "sgd", Group(0.01)});
  }
  spec.space = ParameterSpace(std::move(groups));
  spec.state = StateOfNodes();
  spec.buckets = {2048, 512};
  return spec;
}

void MoveTo(const std::string& kind, OptimizerSpec* spec) {
  std::vector<GroupSpec> groups = spec->space.groups();
  for (GroupSpec& group : groups) {
    for (ParameterSpec& parameter : group.parameters) parameter.device = kind;
  }
  spec->space = ParameterSpace(std::move(groups));
}

Values FirstParameter(Rank rank, int parameter) {
  return OrderSensitiveValues(WholeSpace().parameter(parameter), 17 * rank + parameter);
}

Values GradientOf(Rank rank, StepNumber step, int parameter) {
  return OrderSensitiveValues(WholeSpace().parameter(parameter),
                              (step * 100 + rank) * 100 + parameter);
}

bool HasGradient(Rank rank, StepNumber step, int parameter) {
  return (static_cast<StepNumber>(rank) + step + parameter) % 4 != 0;
}

AttachedOwner::Options NodeTrainer::DefaultOptions(const LocalAddress& socket, Rank rank,
                                                   int world_size) {
  AttachedOwner::Options options;
  options.socket = socket;
  options.rank = rank;
  options.spec = SpecOfNodes(world_size);
  options.node = "node";
  options.join_timeout = absl::Seconds(20);
  return options;
}

absl::StatusOr<std::unique_ptr<NodeTrainer>> NodeTrainer::Start(
    const AttachedOwner::Options& options) {
  std::unique_ptr<NodeTrainer> trainer(new NodeTrainer(options));
  absl::StatusOr<std::unique_ptr<AttachedOwner>> link = AttachedOwner::Attach(options);
  if (!link.ok()) return link.status();
  trainer->link_ = *std::move(link);
  trainer->finished_ = trainer->link_->finished_step();
  const absl::Status begun = trainer->Begin(0);
  if (!begun.ok()) return begun;
  return trainer;
}

absl::Status NodeTrainer::Begin(int first) {
  const bool gives_values = !options_.spec.share_parameters || options_.rank == 0;
  for (int p = first; p < space().parameter_count(); ++p) {
    const MemoryLayout::Place& place = layout_.place(p);
    ReplicaTensor tensor;
    if (space().parameter(p).elements() > 0) {
      tensor.parameter = link_->replica()[place.region].parameters.From(place.offset_elements);
    }
    tensors_.push_back(tensor);
    if (link_->resumes() || !gives_values) continue;
    Store(FirstParameter(options_.rank, p), tensor.parameter);
  }
  if (link_->resumes()) return absl::OkStatus();
  return first == 0 ? SyncParameters() : GiveAddedValues();
}

absl::Status NodeTrainer::SyncParameters() {
  return link_->SyncParameters(tensors_, link_->replica(), options_.join_timeout);
}

absl::Status NodeTrainer::GiveAddedValues() {
  return link_->GiveAddedValues(tensors_, link_->replica(), options_.join_timeout);
}

OptimizerSpec NodeTrainer::GrownSpec() const {
  OptimizerSpec grown = SpecOfNodes(options_.spec.world_size, added() + 1);
  grown.share_parameters = options_.spec.share_parameters;
  grown.policy = options_.spec.policy;
  if (options_.device != nullptr) MoveTo(options_.device->kind(), &grown);
  return grown;
}

absl::Status NodeTrainer::AddGroupWithoutValues(absl::Duration timeout) {
  return link_->AddGroups(GrownSpec(), {}, absl::OkStatus(), timeout);
}

absl::Status NodeTrainer::AddGroup(absl::Duration timeout) {
  absl::Status grew = AddGroupWithoutValues(timeout);
  if (!grew.ok()) return grew;
  const int first = space().parameter_count();
  spec_ = GrownSpec();
  layout_ = MemoryLayout(space());
  return Begin(first);
}

StateShare NodeTrainer::ReadShare() {
  StateAccess* const state = link_->state(absl::Seconds(20)).value();
  return testing::ReadShare(*state, spec_, options_.rank, tensors_);
}

absl::Status NodeTrainer::FinishLoading(const OwnerLink::LoadedStep& loaded) {
  return link_->FinishLoading(loaded, tensors_, link_->replica(), absl::Seconds(20));
}

absl::Status NodeTrainer::VerifyReplicas() {
  return link_->VerifyReplicas(tensors_, link_->replica(), options_.join_timeout);
}

void NodeTrainer::FlipBit(int parameter) {
  *static_cast<unsigned char*>(tensors_[parameter].parameter.data()) ^= 1;
}

absl::StatusOr<StepInfo> NodeTrainer::Step(absl::Duration timeout) {
  static constexpr float kNone = 0;
  const StepNumber step = finished_ + 1;
  for (int p = 0; p < space().parameter_count(); ++p) {
    const int64_t elements = space().parameter(p).elements();
    const MemoryLayout::Place& place = layout_.place(p);
    const Buffer gradient = link_->replica()[place.region].gradients.From(place.offset_elements);
    tensors_[p].gradient = nullptr;
    if (!HasGradient(options_.rank, step, p)) continue;
    tensors_[p].gradient = &kNone;
    if (elements == 0) continue;
    Store(GradientOf(options_.rank, step, p), gradient);
    tensors_[p].gradient = gradient;
  }
  return StepWithGradients(timeout);
}

absl::StatusOr<StepInfo> NodeTrainer::Skip() {
  for (ReplicaTensor& tensor : tensors_) tensor.gradient = nullptr;
  return StepWithGradients(absl::Seconds(20));
}

absl::StatusOr<StepInfo> NodeTrainer::StepWithGradients(absl::Duration timeout) {
  const std::vector<Hyperparameters> groups = hyperparameters();
  StepInput input;
  input.replica = tensors_;
  input.regions = link_->replica();
  input.hyperparameters = groups;
  input.timeout = timeout;
  absl::StatusOr<StepInfo> info = link_->Step(input);
  if (info.ok()) finished_ = info->step;
  return info;
}

std::vector<Hyperparameters> NodeTrainer::hyperparameters() const {
  return std::vector<Hyperparameters>(space().group_count(), Group(rate_));
}

absl::Status NodeTrainer::StepUntil(StepNumber last) {
  while (finished_ < last) {
    absl::Status stepped = Step().status();
    if (stepped.ok()) continue;
    if (!errors::IsTrainerGone(stepped) && !errors::IsOwnerAway(stepped)) return stepped;
    absl::SleepFor(kRetry);
  }
  return absl::OkStatus();
}

Values NodeTrainer::Parameter(int parameter) const {
  return Load(tensors_[parameter].parameter, space().parameter(parameter).elements());
}

std::vector<Values> ExpectedParameters(int world_size, StepNumber steps,
                                       const std::vector<StepNumber>& added) {
  OptimizerSpec spec = SpecOfNodes(world_size);
  std::vector<GroupUpdate> groups = ValidateGroups(spec).value();
  StepOracle oracle(spec.space, groups, StateOfNodes());
  ReductionTree tree;
  tree.node_groups.emplace_back();
  for (Rank rank = 0; rank < world_size; ++rank) tree.node_groups[0].push_back(rank);
  int given = 0;
  const auto give_values = [&] {
    for (; given < spec.space.parameter_count(); ++given) {
      oracle.SetParameter(given, FirstParameter(0, given));
    }
  };
  give_values();
  for (StepNumber step = 1; step <= steps + 1; ++step) {
    while (spec.space.admission_count() <= static_cast<int>(added.size()) &&
           added[spec.space.admission_count() - 1] < step) {
      spec = SpecOfNodes(world_size, spec.space.admission_count());
      groups = ValidateGroups(spec).value();
      oracle.Grow(spec.space, groups);
      give_values();
    }
    if (step > steps) break;
    std::vector<std::vector<Values>> gradients(world_size);
    std::vector<std::vector<bool>> has(world_size);
    for (Rank rank = 0; rank < world_size; ++rank) {
      for (int p = 0; p < spec.space.parameter_count(); ++p) {
        gradients[rank].push_back(GradientOf(rank, step, p));
        has[rank].push_back(HasGradient(rank, step, p));
      }
    }
    oracle.Step(gradients, has, GradientMode::kReduce, tree, HyperparametersOf(groups));
  }
  std::vector<Values> parameters;
  for (int p = 0; p < spec.space.parameter_count(); ++p) parameters.push_back(oracle.Parameter(p));
  return parameters;
}

std::string Differences(const NodeTrainer& trainer, int world_size,
                        const std::vector<StepNumber>& added) {
  std::string all;
  const std::vector<Values> expected = ExpectedParameters(world_size, trainer.finished(), added);
  if (static_cast<int>(expected.size()) != trainer.space().parameter_count()) {
    return absl::StrCat(trainer.space().parameter_count(), " parameters, expected ",
                        expected.size());
  }
  for (size_t p = 0; p < expected.size(); ++p) {
    const std::string one = BitDifference(expected[p], trainer.Parameter(static_cast<int>(p)));
    if (!one.empty()) absl::StrAppend(&all, "parameter ", p, ": ", one, "\n");
  }
  return all;
}

}  // namespace optshard::testing

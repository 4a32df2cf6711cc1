#include "tests/server/shard/engine/engine_rig.h"

#include <xmmintrin.h>

#include <cmath>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/optimizer_spec.h"
#include "gtest/gtest.h"
#include "server/shard/engine/step_input.h"
#include "server/shard/state/replacing.h"
#include "tests/testing/rule_shape.h"

namespace optshard::testing {
namespace {

ParameterSpec Spec(std::string name, std::vector<int64_t> shape) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  return spec;
}

}  // namespace

ParameterSpace MixedSpace() {
  GroupSpec first;
  first.parameters = {Spec("conv.weight", {30, 3, 3, 3}), Spec("conv.bias", {7}),
                      Spec("none", {0, 5}), Spec("fc.weight", {41, 23}), Spec("scale", {})};
  GroupSpec second;
  second.parameters = {Spec("head.weight", {3000}), Spec("head.bias", {10}),
                       Spec("tail.weight", {64, 20}), Spec("tail.bias", {16})};
  return ParameterSpace({first, second});
}

ParameterSpace MixedDTypeSpace(int first) { return WithEveryDType(MixedSpace(), first); }

ParameterSpace WithEveryDType(const ParameterSpace& space, int first) {
  std::vector<GroupSpec> groups = space.groups();
  int next = first;
  for (GroupSpec& group : groups) {
    for (ParameterSpec& parameter : group.parameters) {
      constexpr DType kDTypes[] = {DType::kBFloat16, DType::kFloat64, DType::kFloat16,
                                   DType::kFloat32};
      parameter.dtype = kDTypes[next++ % 4];
    }
  }
  return ParameterSpace(std::move(groups));
}

ParameterSpace MixedGroups(const std::vector<GroupRule>& rules) {
  const ParameterSpace space = MixedSpace();
  std::vector<GroupSpec> groups(rules.size());
  for (size_t g = 0; g < rules.size(); ++g) {
    const UpdateRule& rule = **RuleRegistry::Find(rules[g].name);
    for (const GroupSpec& mixed : space.groups()) {
      for (ParameterSpec parameter : mixed.parameters) {
        absl::StrAppend(&parameter.name, ".", g);
        parameter.shape = ShapeFor(rule, std::move(parameter.shape));
        groups[g].parameters.push_back(std::move(parameter));
      }
    }
  }
  return ParameterSpace(std::move(groups));
}

std::vector<GroupRule> RulesFor(PartitionPolicy policy) {
  std::vector<GroupRule> rules;
  for (const UpdateRule* rule : RuleRegistry::All()) {
    const RuleSpec& spec = rule->spec();
    if (spec.sparse_gradients == SparseGradients::kOnly) continue;
    if (spec.element_wise || policy != PartitionPolicy::kBalanced) rules.push_back({spec.name});
  }
  return rules;
}

EngineRig::EngineRig(Options options) : options_(std::move(options)) {
  if (options_.nodes.empty()) {
    options_.nodes.resize(options_.world_size, "node");
    for (Rank r = 1; on_nodes() && r < options_.world_size; r += 2) options_.nodes[r] = "other";
  }
  common_ = MakeCommon(7, options_.space);
  hub_ = MakeHub();
  oracle_ = std::make_unique<StepOracle>(options_.space, *common_.groups, options_.state);
  ranks_.resize(options_.world_size);
  MakeDevices();
  MakeReplicas();
  MakePlanes();
  for (Rank r = 0; r < options_.world_size; ++r) {
    RankState& rank = ranks_[r];
    rank.timeline = std::make_unique<TimelineRing>(4, Clock::Monotonic());
    rank.hyperparameters = HyperparametersOf(*common_.groups);
    rank.memory = {MakeMemory(r, common_)};
    Take(r, OwnerGeneration::First(OptionsOf(r, common_), rank.memory, StepProgress(),
                                   Replacing::kNothing, ParameterValues::kOfEachRank));
  }
  for (int p = 0; p < options_.space.parameter_count(); ++p) {
    const Values values = FirstValues(p);
    oracle_->SetParameter(p, values);
    for (RankState& rank : ranks_) rank.replica->SetParameter(p, values);
  }
}

Values EngineRig::FirstValues(int parameter) const {
  return OrderSensitiveValues(options_.space.parameter(parameter),
                              options_.seed * 7919 + parameter);
}

EngineRig::Common EngineRig::MakeCommon(Generation generation, const ParameterSpace& space) const {
  OptimizerSpec spec;
  spec.world_size = options_.world_size;
  spec.space = space;
  spec.policy = options_.policy;
  spec.gradient_mode = options_.gradient_mode;
  spec.buckets = options_.buckets;
  spec.state = options_.state;
  for (int g = 0; g < space.group_count(); ++g) {
    spec.rules.push_back(options_.rules[g % options_.rules.size()]);
  }
  Common common;
  absl::StatusOr<std::vector<GroupUpdate>> groups = ValidateGroups(spec);
  EXPECT_TRUE(groups.ok()) << groups.status();
  common.groups = std::make_shared<const std::vector<GroupUpdate>>(*std::move(groups));
  absl::StatusOr<Plan> plan = MakePlan(generation, space, options_.policy, options_.nodes);
  EXPECT_TRUE(plan.ok()) << plan.status();
  common.shape = GenerationShape::Make(std::move(spec), *std::move(plan));
  return common;
}

std::unique_ptr<FakeHub> EngineRig::MakeHub() const {
  FakeHub::Options hub;
  hub.world_size = options_.world_size;
  hub.mode = options_.mode;
  if (on_nodes()) hub.nodes = plan().tree.node_groups;
  return std::make_unique<FakeHub>(hub);
}

bool EngineRig::reachable() const {
  return options_.placements[0] == Placement::kReachable ||
         options_.placements[0] == Placement::kOneCopy || on_nodes();
}

void EngineRig::MakeReplicas() {
  for (Rank r = 0; r < options_.world_size; ++r) {
    ranks_[r].replica = std::make_unique<TestReplica>(
        options_.space, options_.placements[r % options_.placements.size()],
        r == 0 ? nullptr : ranks_[0].replica.get(), ranks_[r].device.get());
  }
  if (!reachable()) return;
  PeerReplicas replicas;
  for (const RankState& rank : ranks_) replicas.regions.push_back(rank.replica->regions());
  hub_->ShareReplicas(std::move(replicas));
}

void EngineRig::MakeDevices() {
  if (options_.device == nullptr && !options_.on_devices) return;
  if (options_.on_devices) devices_ = std::make_unique<NcclGroup>(options_.world_size);
  for (Rank r = 0; r < options_.world_size; ++r) {
    RankState& rank = ranks_[r];
    rank.device = options_.on_devices ? *devices_->OptionsOf(r).device : options_.device;
    rank.stream = *rank.device->NewStream();
  }
}

void EngineRig::MakePlanes() {
  if (options_.world_size == 1) return;
  OnEveryRank([this](Rank r) {
    if (!options_.on_devices) {
      ranks_[r].plane = hub_->MakePlane(r);
      return;
    }
    NcclPlaneOptions options = devices_->OptionsOf(r);
    options.device = ranks_[r].device;
    absl::StatusOr<std::unique_ptr<DataPlane>> plane = devices_->Make(options);
    ASSERT_TRUE(plane.ok()) << plane.status();
    ranks_[r].plane = *std::move(plane);
  });
}

ShardMemory EngineRig::MakeMemory(Rank rank, const Common& common) const {
  ShardStore::Options store;
  store.shape = common.shape;
  store.rank = rank;
  store.TakeSlotsOf(*common.groups);
  const int admission = common.shape->space().admission_count() - 1;
  const ShardMemory::Bytes bytes = ShardStore::BytesFor(store, admission);
  absl::StatusOr<ShardMemory> memory =
      ranks_[rank].device != nullptr && !options_.state_on_host
          ? ShardMemory::OnDevice(bytes, ranks_[rank].device, "a test's state")
          : ShardMemory::Private(bytes, "a test's state");
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

OwnerGeneration::Options EngineRig::OptionsOf(Rank rank, const Common& common) const {
  OwnerGeneration::Options options;
  options.shape = common.shape;
  options.groups = common.groups;
  options.rank = rank;
  options.incarnation = 100 + rank;
  options.plane = ranks_[rank].plane;
  options.driver = options_.driver;
  options.threads = options_.threads;
  if (options_.executor_of) options.make_executor = options_.executor_of(rank);
  options.device = ranks_[rank].device;
  options.state_on_host = options_.state_on_host;
  if (options_.on_devices && !options_.state_on_host) {
    options.make_executor =
        MakeFakeDeviceExecutor(devices_->devices(), options.device,
                               options_.may_update ? options_.may_update(rank) : nullptr);
  }
  options.window = options_.window;
  options.staging_buffers = options_.staging_buffers;
  options.timeline = ranks_[rank].timeline.get();
  options.clock = &Clock::Monotonic();
  return options;
}

void EngineRig::Take(Rank r, absl::StatusOr<std::unique_ptr<OwnerGeneration>> built) {
  ASSERT_TRUE(built.ok()) << built.status();
  RankState& rank = ranks_[r];
  rank.generation = *std::move(built);
  rank.engine = &rank.generation->engine();
  rank.store = rank.generation->store().get();
}

void EngineRig::RemakeEngine(Rank r) {
  RankState& rank = ranks_[r];
  const StepProgress left = rank.store->ledger().progress();
  Take(r, OwnerGeneration::First(OptionsOf(r, common_), rank.memory, left,
                                 rank.store->ledger().replacing(), ParameterValues::kOfEachRank));
}

absl::Status EngineRig::BuildInVain(Rank rank, const ParameterSpace& space) {
  const Common next = MakeCommon(common_.shape->generation() + 1, space);
  return OwnerGeneration::After(*ranks_[rank].generation, OptionsOf(rank, next)).status();
}

void EngineRig::Grow(const ParameterSpace& space) {
  const int known = options_.space.parameter_count();
  common_ = MakeCommon(common_.shape->generation() + 1, space);
  options_.space = space;
  oracle_->Grow(space, *common_.groups);
  // The former planes end with the hub that they are of.
  const std::unique_ptr<FakeHub> former_hub = std::exchange(hub_, MakeHub());
  std::vector<std::unique_ptr<TestReplica>> former;
  for (RankState& rank : ranks_) former.push_back(std::move(rank.replica));
  MakeReplicas();
  for (Rank r = 0; r < options_.world_size; ++r) {
    RankState& rank = ranks_[r];
    for (int p = 0; p < known; ++p) rank.replica->SetParameter(p, former[r]->Parameter(p));
    if (options_.world_size > 1) rank.plane = hub_->MakePlane(r);
    rank.memory.push_back(MakeMemory(r, common_));
    absl::StatusOr<std::unique_ptr<OwnerGeneration>> next =
        OwnerGeneration::After(*rank.generation, OptionsOf(r, common_), rank.memory.back());
    ASSERT_TRUE(next.ok()) << next.status();
    (*next)->Begin(*rank.generation);
    Take(r, std::move(next));
    rank.hyperparameters = HyperparametersOf(*common_.groups);
  }
  for (int p = known; p < space.parameter_count(); ++p) {
    const Values first = FirstValues(p);
    oracle_->SetParameter(p, first);
    ranks_[0].replica->SetParameter(p, first);
  }
}

EngineRig::~EngineRig() { hub_->ReleaseHung(); }

void EngineRig::GiveGradients(const Presence& presence) {
  ++given_;
  gradients_.assign(options_.world_size, {});
  has_.assign(options_.world_size, {});
  touched_.assign(options_.space.parameter_count(), {});
  for (Rank r = 0; r < options_.world_size; ++r) {
    for (int p = 0; p < options_.space.parameter_count(); ++p) {
      // Averaged gradients are the same on all ranks.
      const Rank source = options_.gradient_mode == GradientMode::kAveraged ? 0 : r;
      const uint64_t seed = ((options_.seed * 1000 + given_) * 100 + source) * 1000 + p;
      ParameterSpec spec = options_.space.parameter(p);
      spec.dtype = spec.gradient_dtype();
      gradients_[r].push_back(OrderSensitiveValues(spec, seed));
      for (double& value : gradients_[r].back()) {
        value = RoundedTo(spec.dtype, std::ldexp(value, options_.gradient_exponent));
      }
      has_[r].push_back(presence(given_, r, p));
      if (has_[r][p]) {
        ranks_[r].replica->SetGradient(p, gradients_[r][p]);
      } else {
        ranks_[r].replica->DropGradient(p);
      }
    }
  }
}

void EngineRig::GiveAllGradients() {
  GiveGradients([](StepNumber, Rank, int) { return true; });
}

void EngineRig::MakeSparse(int parameter, const RowPresence& has) {
  const ParameterSpec& spec = options_.space.parameter(parameter);
  const int64_t row_elements = spec.elements() / spec.shape[0];
  touched_[parameter].assign(spec.elements(), false);
  for (Rank r = 0; r < options_.world_size; ++r) {
    if (!has_[r][parameter]) continue;
    for (int64_t i = 0; i < spec.elements(); ++i) {
      if (has(r, i / row_elements)) {
        touched_[parameter][i] = true;
      } else {
        gradients_[r][parameter][i] = 0;
      }
    }
    ranks_[r].replica->SetGradientRows(parameter, [&](int64_t row) { return has(r, row); });
  }
}

void EngineRig::OnEveryRank(const std::function<void(Rank)>& work) {
  std::vector<std::thread> threads;
  for (Rank r = 0; r < options_.world_size; ++r) {
    threads.emplace_back([this, &work, r] {
      // The thread ends with it: nobody puts it back.
      if (!options_.floating_point_modes.empty()) {
        _mm_setcsr(_mm_getcsr() | options_.floating_point_modes[r]);
      }
      work(r);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<StepEngine::Result> EngineRig::Step() {
  std::vector<StepEngine::Result> results(options_.world_size);
  OnEveryRank([&](Rank r) { results[r] = StepOf(r); });
  return results;
}

StepEngine::Result EngineRig::StepOf(Rank r) {
  RankState& rank = ranks_[r];
  StepInput input;
  input.replica = rank.replica->tensors();
  input.regions = rank.replica->regions();
  input.hyperparameters = rank.hyperparameters;
  input.timeout = options_.timeout;
  input.stream = rank.stream.get();
  return rank.engine->Step(input);
}

std::vector<StepEngine::Result> EngineRig::SyncParameters() {
  std::vector<StepEngine::Result> results(options_.world_size);
  OnEveryRank([&](Rank r) {
    RankState& rank = ranks_[r];
    results[r] = rank.engine->SyncParameters(rank.replica->tensors(), rank.replica->regions(),
                                             options_.timeout, rank.stream.get());
  });
  return results;
}

std::vector<StepEngine::Result> EngineRig::Synchronize() {
  std::vector<StepEngine::Result> results(options_.world_size);
  OnEveryRank([&](Rank r) { results[r] = ranks_[r].engine->Synchronize(options_.timeout); });
  return results;
}

void EngineRig::StepOracleAlong() {
  oracle_->Step(gradients_, has_, options_.gradient_mode, plan().tree, ranks_[0].hyperparameters,
                touched_);
}

std::string EngineRig::DifferenceToOracle() const {
  for (Rank r = 0; r < options_.world_size; ++r) {
    for (int p = 0; p < options_.space.parameter_count(); ++p) {
      const std::string difference =
          BitDifference(oracle_->Parameter(p), ranks_[r].replica->Parameter(p));
      if (difference.empty()) continue;
      return absl::StrCat("rank ", r, ", parameter ", p, " ", options_.space.parameter(p).name,
                          ", ", difference, ", seed ", options_.seed);
    }
    for (const Slice& slice : shape()->slices(r)) {
      const std::string difference = SlotDifference(r, slice);
      if (!difference.empty()) return absl::StrCat(difference, ", seed ", options_.seed);
    }
  }
  return "";
}

std::string EngineRig::SlotDifference(Rank rank, const Slice& slice) const {
  const int p = slice.parameter;
  const std::string where =
      absl::StrCat("rank ", rank, ", parameter ", p, " ", options_.space.parameter(p).name, ", ");
  const ShardStore& store = *ranks_[rank].store;
  if (store.step_count(p) != oracle_->step_count(p)) {
    return absl::StrCat(where, "step count: expected ", oracle_->step_count(p), ", got ",
                        store.step_count(p));
  }
  std::vector<std::pair<int, const Values*>> expected;
  const DType dtype = options_.space.parameter(p).dtype;
  if (options_.state.HasMaster(dtype)) {
    expected.emplace_back(ShardStore::kMaster, &oracle_->Master(p));
  }
  if (options_.state.HasCorrection(dtype)) {
    expected.emplace_back(ShardStore::kCorrection, &oracle_->Correction(p));
  }
  for (int s = 0; s < oracle_->slot_count(p); ++s) expected.emplace_back(s, &oracle_->Slot(p, s));
  if (oracle_->scalar_slots(p) != store.scalar_slots(p)) {
    return absl::StrCat(where, "scalar slots: expected ", oracle_->scalar_slots(p)[0], ", got ",
                        store.scalar_slots(p)[0]);
  }
  for (const auto& [s, whole] : expected) {
    const bool is_whole = s >= 0 && oracle_->has_own_shape(p, s);
    const int64_t offset = is_whole ? 0 : slice.offset_elements;
    Values actual(is_whole ? whole->size() : slice.elements);
    if (!store.TryRead(p, s, offset, absl::MakeSpan(actual))->has_value()) {
      return absl::StrCat(where, "slot ", s, " cannot be read although no step is running");
    }
    const auto first = whole->begin() + offset;
    const std::string difference =
        BitDifference({first, first + static_cast<int64_t>(actual.size())}, actual);
    if (!difference.empty()) {
      return absl::StrCat(where, "slot ", s, " from ", slice.offset_elements, ", ", difference);
    }
  }
  return "";
}

void ExpectAllOk(const std::vector<StepEngine::Result>& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    ASSERT_TRUE(results[r].status.ok()) << "rank " << r << ": " << results[r].status;
  }
}

}  // namespace optshard::testing

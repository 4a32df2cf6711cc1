// Saves snapshots of real stores and compares what a checkpoint gives back, bit for bit.
#include "server/shard/saving/snapshot_state.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/generation_shape.h"
#include "common/plan.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/commit.h"
#include "server/shard/saving/checkpoint_description.h"
#include "server/shard/snapshot/store_snapshot.h"
#include "server/update/group_update.h"
#include "server/update/state_support.h"
#include "tests/testing/fake_file_system.h"
#include "tests/testing/rule_shape.h"

namespace optshard {
namespace {

using KeptArray = ShardSnapshot::KeptArray;
using testing::FakeFileSystem;

// Parameter, slot, whether of its scales.
using ArrayKey = std::tuple<int, std::string, bool>;

std::vector<RuleSpec> Rules(bool element_wise, StateFormat format) {
  std::vector<RuleSpec> rules;
  for (const UpdateRule* rule : RuleRegistry::All()) {
    const bool taken =
        rule->spec().element_wise == element_wise && CheckStateFormat(*rule, format).ok();
    if (taken) rules.push_back(rule->spec());
  }
  return rules;
}

// A group for each rule, with parameters of every type, large and small.
OptimizerSpec SpecOf(bool element_wise, const StateOptions& state) {
  OptimizerSpec spec;
  spec.state = state;
  spec.buckets = {16384, 1024};
  std::vector<GroupSpec> groups;
  for (const RuleSpec& rule : Rules(element_wise, state.format)) {
    GroupSpec group;
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
      for (const std::vector<int64_t>& shape : {std::vector<int64_t>{64, 96}, {3, 5}, {0, 4}}) {
        ParameterSpec parameter;
        parameter.name = absl::StrCat(rule.name, ".", NameOf(dtype), ".", shape[0]);
        parameter.shape = testing::ShapeFor(**RuleRegistry::Find(rule.name), shape);
        parameter.dtype = dtype;
        group.parameters.push_back(parameter);
      }
    }
    groups.push_back(std::move(group));
    GroupRule with = {rule.name, {}};
    if (rule.name == "sgd") with.hyperparameters.Set("momentum", 0.9);
    if (rule.name == "adam") with.hyperparameters.Set("amsgrad", true);
    spec.rules.push_back(std::move(with));
  }
  spec.space = ParameterSpace(std::move(groups));
  return spec;
}

// The owners of a job, with random bits for state.
class Owners {
 public:
  Owners(OptimizerSpec spec, int world_size, PartitionPolicy policy) {
    spec.world_size = world_size;
    spec.policy = policy;
    auto groups = ValidateGroups(spec);
    EXPECT_TRUE(groups.ok()) << groups.status();
    groups_ = std::make_shared<const std::vector<GroupUpdate>>(*std::move(groups));
    const std::vector<std::string> nodes(world_size, "node");
    shape_ = GenerationShape::Make(spec, MakePlan(7, spec.space, policy, nodes).value());
    for (Rank rank = 0; rank < world_size; ++rank) {
      ShardStore::Options options;
      options.shape = shape_;
      options.rank = rank;
      options.TakeSlotsOf(*groups_);
      stores_.push_back(*ShardStore::Create(options));
      stores_.back()->ledger().Begin(7, StepProgress());
      const int64_t needed = SnapshotMemory::RoundedUp(stores_.back()->snapshots().bytes());
      memories_.push_back(*SnapshotMemory::Create({2 * needed}));
      Fill(rank, 1);
    }
  }

  // A step that leaves random bits everywhere.
  void Fill(Rank rank, StepNumber step) {
    ShardStore& store = *stores_[rank];
    // To find where everything lies.
    StoreSnapshotOptions live = Snapshot(rank);
    live.contents.keep_copies = false;
    const auto memory = *OpenStoreSnapshot(live, absl::ZeroDuration());
    for (size_t own = 0; own < store.own_buckets().size(); ++own) {
      store.BeginWrite(static_cast<int>(own));
    }
    for (size_t i = 0; i < memory->parts().size(); ++i) {
      const ShardSnapshot::Part& part = memory->parts()[i];
      const auto index = static_cast<int>(i);
      if (part.format == StateFormat::kFloat64 && part.elements == 1) {
        continue;
      }
      // By place, so that replicated owners have the same.
      std::mt19937_64 random(step * 1000 + int64_t{7} * part.parameter + part.offset_elements);
      for (const KeptArray array : {KeptArray::kValues, KeptArray::kScales}) {
        if (array == KeptArray::kScales && !part.code.has_value()) continue;
        const std::string bytes = RandomBytes(BytesOf(part, array), random);
        const char* to = memory->ReadKept(index, array, 0, part.elements).data;
        std::copy(bytes.begin(), bytes.end(), const_cast<char*>(to));
      }
    }
    for (size_t own = 0; own < store.own_buckets().size(); ++own) {
      store.EndWrite(static_cast<int>(own), step);
    }
    std::vector<bool> updated(shape_->space().parameter_count(), true);
    updated[0] = step > 1;
    const ScalarSlots scalars = {0.5 + static_cast<double>(step), 1e-300};
    store.CountStep(step, updated, [&](int) { return &scalars; });
    store.ledger().SetProgress({step, StepOutcome::kIdle, 0});
  }

  std::unique_ptr<ShardSnapshot> Open(Rank rank) const {
    auto opened = OpenStoreSnapshot(Snapshot(rank), absl::ZeroDuration());
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }

  CheckpointManifest Describe() const {
    std::vector<GroupRule> rules = shape_->spec().rules;
    auto description =
        DescribeCheckpoint({"job", "default", 0, 1}, *shape_, *groups_, rules, false);
    EXPECT_TRUE(description.ok()) << description.status();
    // Snapshots of a store have no parameters.
    for (CheckpointParameter& parameter : description->parameters) {
      EXPECT_EQ(parameter.arrays.front().name, kParameterArray);
      parameter.arrays.erase(parameter.arrays.begin());
    }
    return *std::move(description);
  }

  // What the snapshots of all owners have.
  static void Collect(const ShardSnapshot& snapshot, std::map<ArrayKey, std::string>& all) {
    for (size_t i = 0; i < snapshot.parts().size(); ++i) {
      const ShardSnapshot::Part& part = snapshot.parts()[i];
      for (const KeptArray array : {KeptArray::kValues, KeptArray::kScales}) {
        const bool scales = array == KeptArray::kScales;
        if (scales && !part.code.has_value()) continue;
        std::string& bytes = all[{part.parameter, part.slot, scales}];
        ShardSnapshot::Part before = part;
        before.elements = part.offset_elements;
        const int64_t begin = BytesOf(before, array);
        const int64_t size = BytesOf(part, array);
        bytes.resize(std::max<size_t>(bytes.size(), begin + size));
        const char* from = snapshot.ReadKept(static_cast<int>(i), array, 0, part.elements).data;
        if (size > 0) std::memcpy(&bytes[begin], from, size);
      }
    }
  }

  int world_size() const { return shape_->plan().world_size; }

 private:
  StoreSnapshotOptions Snapshot(Rank rank) const {
    StoreSnapshotOptions options;
    options.shape = shape_;
    options.groups = groups_;
    options.rank = rank;
    options.store = stores_[rank];
    options.memory = memories_[rank];
    return options;
  }

  static int64_t BytesOf(const ShardSnapshot::Part& part, KeptArray array) {
    if (!part.code.has_value()) return part.bytes();
    return array == KeptArray::kValues ? CodeBytes(*part.code, part.elements)
                                       : ScaleBytes(*part.code, part.elements);
  }

  static std::string RandomBytes(int64_t bytes, std::mt19937_64& random) {
    std::string text(bytes, '\0');
    for (char& each : text) each = static_cast<char>(random());
    return text;
  }

  GroupUpdates groups_;
  std::shared_ptr<const GenerationShape> shape_;
  std::vector<std::shared_ptr<ShardStore>> stores_;
  std::vector<std::shared_ptr<SnapshotMemory>> memories_;
};

// "" where the checkpoint has exactly this, or the first array that differs.
std::string Difference(const CheckpointReader& reader,
                       const std::map<ArrayKey, std::string>& expected) {
  const CheckpointManifest& manifest = reader.manifest();
  size_t compared = 0;
  for (size_t p = 0; p < manifest.parameters.size(); ++p) {
    const CheckpointParameter& parameter = manifest.parameters[p];
    const auto index = static_cast<int>(p);
    for (size_t a = 0; a < parameter.arrays.size(); ++a) {
      const CheckpointArray& array = parameter.arrays[a];
      for (const ArrayPart part : {ArrayPart::kValues, ArrayPart::kScales}) {
        if (part == ArrayPart::kScales && !IsCoded(array.format)) continue;
        const int64_t elements = parameter.ElementsOf(static_cast<int>(a));
        std::string bytes(PartBytes(array.format, part, elements), '?');
        const absl::Status read =
            reader.Read(index, static_cast<int>(a), part, 0, elements, absl::MakeSpan(bytes));
        if (!read.ok()) return read.ToString();
        const auto found = expected.find({index, array.name, part == ArrayPart::kScales});
        const std::string kept = found == expected.end() ? "" : found->second;
        if (bytes != kept) return absl::StrCat(array.name, " of ", parameter.name);
        compared += found == expected.end() ? 0 : 1;
      }
    }
    ScalarValues scalars;
    for (const auto& [key, bytes] : expected) {
      if (std::get<0>(key) != index || bytes.size() != sizeof(double)) continue;
      double value = 0;
      std::memcpy(&value, bytes.data(), sizeof(value));
      const std::string& slot = std::get<1>(key);
      if (slot == "step" && parameter.steps != value) return "steps of " + parameter.name;
      if (slot == "step") ++compared;
      if (parameter.scalars.count(slot) == 0) continue;
      if (parameter.scalars.at(slot) != value) return slot + " of " + parameter.name;
      ++compared;
    }
  }
  return compared == expected.size() ? "" : absl::StrCat(compared, " of ", expected.size());
}

struct Case {
  StateFormat format = StateFormat::kFloat32;
  int master_bits = 0;
  PartitionPolicy policy = PartitionPolicy::kGreedy;
  int world_size = 1;
};

class SnapshotStateTest : public ::testing::TestWithParam<Case> {};

TEST_P(SnapshotStateTest, EveryRule_IsSavedBitForBitWhileStepsGoOn) {
  for (const bool element_wise : {true, false}) {
    if (!element_wise && GetParam().policy == PartitionPolicy::kBalanced) continue;
    StateOptions state;
    state.format = GetParam().format;
    state.master_weights = GetParam().master_bits > 0;
    if (state.master_weights) state.master_weight_bits = GetParam().master_bits;
    const OptimizerSpec spec = SpecOf(element_wise, state);
    if (spec.rules.empty()) continue;
    Owners owners(spec, GetParam().world_size, GetParam().policy);
    CheckpointManifest description = owners.Describe();
    description.step = 1;

    FakeFileSystem system;
    const auto root = system.OpenDirectory("/").value();
    const NewCheckpoint made = CreateCheckpoint(*root, 1).value();
    std::map<ArrayKey, std::string> expected;
    std::vector<OwnerPart> parts;
    for (Rank rank = 0; rank < owners.world_size(); ++rank) {
      const auto snapshot = owners.Open(rank);
      Owners::Collect(*snapshot, expected);
      if (rank == 0) owners.Fill(rank, 2);  // from copies, then; other ranks from live memory
      auto written = OwnerStateOf(*snapshot, description, rank);
      ASSERT_TRUE(written.ok()) << written.status();
      auto part = WriteOwnerFile(*made.directory, description.parameters, *written);
      ASSERT_TRUE(part.ok()) << part.status();
      parts.push_back(*std::move(part));
    }
    const auto manifest = MakeManifest(description, std::move(parts));
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    ASSERT_EQ(CommitCheckpoint(*made.directory, *manifest), absl::OkStatus());
    const auto reader = CheckpointReader::Open(root->OpenDirectory(made.name).value());
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ(Difference(**reader, expected), "");
  }
}

INSTANTIATE_TEST_SUITE_P(
    FormatsAndPolicies, SnapshotStateTest,
    ::testing::Values(Case{StateFormat::kFloat32, 32, PartitionPolicy::kGreedy, 2},
                      Case{StateFormat::kFloat32, 0, PartitionPolicy::kBalanced, 3},
                      Case{StateFormat::kBFloat16, 24, PartitionPolicy::kBalanced, 2},
                      Case{StateFormat::kInt8Dynamic, 0, PartitionPolicy::kBalanced, 3},
                      Case{StateFormat::kInt8Companded, 24, PartitionPolicy::kGreedyInOrder, 2},
                      Case{StateFormat::kInt8Dynamic, 32, PartitionPolicy::kReplicated, 2}));

// Two elements, which a step overwrites while they are read.
class OvertakenSnapshot final : public ShardSnapshot {
 public:
  explicit OvertakenSnapshot(PartState then) : then_(then) {
    parts_.push_back({0, "exp_avg", StateFormat::kFloat32, 0, 2});
  }
  StepNumber step() const override { return 4; }
  Generation generation() const override { return 7; }
  absl::Span<const Hyperparameters> hyperparameters() const override { return {}; }
  absl::string_view blob() const override { return ""; }
  const std::vector<Part>& parts() const override { return parts_; }
  PartState state(int) const override { return reads_ == 0 ? PartState::kLive : then_; }
  Bytes Read(int, int64_t, int64_t) const override {
    const float* values = reads_++ == 0 ? overwritten_ : kept_;
    return {reinterpret_cast<const char*>(values), nullptr};
  }
  Bytes ReadKept(int part, KeptArray, int64_t first, int64_t elements) const override {
    return Read(part, first, elements);
  }
  void Close() override {}

 private:
  const PartState then_;
  std::vector<Part> parts_;
  mutable int reads_ = 0;
  const float overwritten_[2] = {-1, -1};
  const float kept_[2] = {1, 2};
};

CheckpointManifest DescriptionOfTwoElements() {
  CheckpointManifest description;
  description.generation = 7;
  CheckpointParameter parameter;
  parameter.shape = {2};
  parameter.arrays = {{"exp_avg", ArrayFormat::kFloat32, absl::nullopt}};
  description.parameters = {parameter};
  return description;
}

TEST(SnapshotStateTest, WhatAStepOverwritesMeanwhile_IsReadAgain) {
  const OvertakenSnapshot snapshot(ShardSnapshot::PartState::kKept);
  const auto state = OwnerStateOf(snapshot, DescriptionOfTwoElements(), 0);
  ASSERT_TRUE(state.ok()) << state.status();
  const auto bytes = state->slices.at(0).values(0, 8);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  float values[2];
  std::memcpy(values, bytes->data(), sizeof(values));
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], 2);
}

TEST(SnapshotStateTest, WhatIsLostMeanwhile_IsAborted) {
  const OvertakenSnapshot snapshot(ShardSnapshot::PartState::kLost);
  const auto state = OwnerStateOf(snapshot, DescriptionOfTwoElements(), 0);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->slices.at(0).values(0, 8).status().code(), absl::StatusCode::kAborted);
}

TEST(SnapshotStateTest, PartsThatFollowOneAnother_AreOneTensor) {
  Owners owners(SpecOf(true, StateOptions()), 1, PartitionPolicy::kGreedy);
  const auto snapshot = owners.Open(0);
  const CheckpointManifest description = owners.Describe();
  const auto state = OwnerStateOf(*snapshot, description, 0);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_LT(state->slices.size(), snapshot->parts().size());
  for (const OwnerSlice& slice : state->slices) {
    EXPECT_EQ(slice.offset_elements, 0);
    EXPECT_EQ(slice.elements, description.parameters[slice.parameter].ElementsOf(slice.array));
  }
}

TEST(SnapshotStateTest, ASnapshotOfAnotherGeneration_IsAborted) {
  Owners owners(SpecOf(true, StateOptions()), 1, PartitionPolicy::kGreedy);
  CheckpointManifest description = owners.Describe();
  description.generation = 8;
  EXPECT_EQ(OwnerStateOf(*owners.Open(0), description, 0).status().code(),
            absl::StatusCode::kAborted);
}

TEST(SnapshotStateTest, APartThatIsNotDescribed_IsAnError) {
  Owners owners(SpecOf(true, StateOptions()), 1, PartitionPolicy::kGreedy);
  CheckpointManifest description = owners.Describe();
  for (CheckpointParameter& parameter : description.parameters) parameter.arrays.clear();
  EXPECT_EQ(OwnerStateOf(*owners.Open(0), description, 0).status().code(),
            absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace optshard

#include "server/shard/snapshot/store_snapshot.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/block_code.h"
#include "common/generation_shape.h"
#include "common/optimizer_spec.h"
#include "common/plan.h"
#include "gtest/gtest.h"
#include "server/shard/snapshot/parameter_copies.h"
#include "server/shard/snapshot/parameter_memory.h"
#include "server/shard/snapshot/snapshot_memory.h"
#include "server/shard/state/device_access.h"
#include "server/shard/state/replacing.h"
#include "server/shard/state/slot_memory.h"
#include "server/update/group_update.h"
#include "tests/testing/fake_device.h"

namespace optshard {
namespace {

using PartState = ShardSnapshot::PartState;

// One rank keeps Adam's state of "a" (5,000 elements in many buckets) and "b".
class StoreSnapshotTest : public ::testing::Test {
 protected:
  explicit StoreSnapshotTest(StateFormat format = StateFormat::kFloat32) {
    OptimizerSpec spec;
    GroupSpec group;
    for (const int64_t elements : {5000, 10}) {
      ParameterSpec parameter;
      parameter.name = elements == 5000 ? "a" : "b";
      parameter.shape = {elements};
      group.parameters.push_back(parameter);
    }
    spec.space = ParameterSpace({group});
    spec.rules = {{"adam", {}}};
    spec.buckets = {2048, 256};
    spec.state.format = format;
    auto groups = ValidateGroups(spec, {});
    EXPECT_TRUE(groups.ok()) << groups.status();
    options_.groups = std::make_shared<const std::vector<GroupUpdate>>(*std::move(groups));
    options_.shape =
        GenerationShape::Make(spec, MakePlan(1, spec.space, spec.policy, {"node"}).value());
    ShardStore::Options store;
    store.shape = options_.shape;
    store.TakeSlotsOf(*options_.groups);
    store_ = *ShardStore::Create(store);
    store_->ledger().Begin(1, StepProgress());
    options_.store = store_;
    options_.memory = *SnapshotMemory::Create({store_->snapshots().bytes()});
  }

  void Write(int own, StepNumber step) {
    const ShardStore::OwnBucket& bucket = store_->own_buckets()[own];
    store_->BeginWrite(own);
    for (size_t span = 0; span < bucket.states.size(); ++span) {
      for (const SlotArray& slot : bucket.states[span].slots) {
        if (!slot) continue;
        const std::vector<double> values(bucket.bucket->spans[span].elements,
                                         static_cast<double>(step));
        WriteSlot(slot, 0, static_cast<int64_t>(values.size()), values.data());
      }
    }
    store_->EndWrite(own, step);
  }

  void BeginStep(StepNumber step) {
    store_->ledger().SetProgress({step - 1, StepOutcome::kTorn, 0});
  }
  void EndStep(StepNumber step) {
    store_->CountStep(step, {true, true}, [](int) { return nullptr; });
    store_->ledger().SetProgress({step, StepOutcome::kIdle, 0});
  }
  void Step(StepNumber step) {
    BeginStep(step);
    for (size_t own = 0; own < store_->own_buckets().size(); ++own) {
      Write(static_cast<int>(own), step);
    }
    EndStep(step);
  }

  // All values that the snapshot gives, by parameter and slot.
  std::map<std::pair<int, std::string>, std::vector<double>> ValuesOf(
      const ShardSnapshot& snapshot) {
    std::map<std::pair<int, std::string>, std::vector<double>> all;
    for (size_t i = 0; i < snapshot.parts().size(); ++i) {
      const ShardSnapshot::Part& part = snapshot.parts()[i];
      const int64_t begin = std::min<int64_t>(part.elements, 256);  // in two pieces
      std::vector<double>& values = all[{part.parameter, part.slot}];
      values.resize(std::max<size_t>(values.size(), part.offset_elements + part.elements), -1);
      for (const auto& [first, count] :
           {std::pair<int64_t, int64_t>(0, begin),
            std::pair<int64_t, int64_t>(begin, part.elements - begin)}) {
        const ShardSnapshot::Bytes bytes = snapshot.Read(static_cast<int>(i), first, count);
        for (int64_t e = 0; e < count; ++e) {
          double value = 0;
          if (part.format == StateFormat::kFloat64) {
            std::memcpy(&value, bytes.data + e * 8, 8);
          } else {
            float narrow = 0;
            std::memcpy(&narrow, bytes.data + e * 4, 4);
            value = narrow;
          }
          values[part.offset_elements + first + e] = value;
        }
      }
    }
    return all;
  }

  void ExpectStep(const ShardSnapshot& snapshot, StepNumber step) {
    EXPECT_EQ(snapshot.step(), step);
    const auto values = ValuesOf(snapshot);
    EXPECT_EQ(values.size(), 6);
    const auto expected = static_cast<double>(step);
    for (const int parameter : {0, 1}) {
      for (const std::string slot : {"exp_avg", "exp_avg_sq", "step"}) {
        const std::vector<double>& of_slot = values.at({parameter, slot});
        EXPECT_EQ(of_slot.size(), slot == "step" ? 1 : parameter == 0 ? 5000 : 10);
        EXPECT_THAT(of_slot, ::testing::Each(expected)) << parameter << " " << slot;
      }
    }
  }

  StoreSnapshotOptions options_;
  std::shared_ptr<ShardStore> store_;
};

TEST_F(StoreSnapshotTest, WhileStepsGoOn_IsTheStateOfItsStep) {
  Step(1);
  const auto snapshot = OpenStoreSnapshot(options_, absl::ZeroDuration());
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  BeginStep(2);
  for (size_t own = 0; own < store_->own_buckets().size(); ++own) {
    ExpectStep(**snapshot, 1);
    Write(static_cast<int>(own), 2);
  }
  EndStep(2);
  ExpectStep(**snapshot, 1);
  Step(3);
  ExpectStep(**snapshot, 1);
}

TEST_F(StoreSnapshotTest, InTheMiddleOfAStep_CannotBeOpened) {
  Step(1);
  BeginStep(2);
  Write(0, 2);
  EXPECT_EQ(OpenStoreSnapshot(options_, absl::Milliseconds(1)).status().code(),
            absl::StatusCode::kAborted);
  EndStep(2);
  EXPECT_TRUE(OpenStoreSnapshot(options_, absl::ZeroDuration()).ok());
}

TEST_F(StoreSnapshotTest, WhileATrainerReplacesAValue_CannotBeOpened) {
  store_->BeginWrite(0);
  EXPECT_FALSE(OpenStoreSnapshot(options_, absl::ZeroDuration()).ok());
  store_->EndWrite(0, 0);
  EXPECT_TRUE(OpenStoreSnapshot(options_, absl::ZeroDuration()).ok());
}

TEST_F(StoreSnapshotTest, WithoutCopies_PartsThatAreWrittenAreLost) {
  options_.contents.keep_copies = false;
  options_.memory = *SnapshotMemory::Create({0});
  Step(1);
  const auto snapshot = OpenStoreSnapshot(options_, absl::ZeroDuration());
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ExpectStep(**snapshot, 1);
  Write(0, 2);
  int lost = 0;
  const auto parts = static_cast<int>((*snapshot)->parts().size());
  for (int i = 0; i < parts; ++i) lost += (*snapshot)->state(i) == PartState::kLost ? 1 : 0;
  EXPECT_GT(lost, 0);
  EXPECT_LT(lost, parts);
}

TEST_F(StoreSnapshotTest, NumbersOfAWholeParameter_ComeFirst) {
  const auto snapshot = OpenStoreSnapshot(options_, absl::ZeroDuration());
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ((*snapshot)->parts()[0].slot, "step");
  EXPECT_EQ((*snapshot)->parts()[1].slot, "step");
  EXPECT_EQ((*snapshot)->state(0), PartState::kKept);
}

class FakeWrites final : public TrainerWrites {
 public:
  uint64_t count() const override { return count_.load(); }
  bool are_expected() const override { return expected_.load(); }
  absl::StatusOr<uint64_t> CountNow() const override {
    if (!says_.load()) return absl::UnavailableError("it does not say");
    return count();
  }
  uint64_t calls() const override { return calls_.load(); }

  std::atomic<bool> says_{true};
  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> count_{0};
  std::atomic<bool> expected_{false};
};

// The values of "a" and "b" are the step's number.
class ParametersOfStoreTest : public StoreSnapshotTest {
 protected:
  ParametersOfStoreTest() {
    const auto place = std::make_shared<ParameterPlace>();
    auto memory = std::make_shared<ParameterMemory>();
    for (const std::vector<float>& values : values_) memory->values.emplace_back(values.data());
    memory->writes = writes_;
    place->Set(memory);
    place_ = place;
    options_.parameters = place;
    options_.contents.parameters = true;
    options_.contents.parameters_later = true;
    options_.memory = *SnapshotMemory::Create(
        {SnapshotMemory::RoundedUp(store_->snapshots().bytes()) +
         SnapshotMemory::RoundedUp(ParameterCopies::BytesFor(options_.shape, 0))});
  }

  std::unique_ptr<ShardSnapshot> Opened() {
    auto snapshot = OpenStoreSnapshot(options_, absl::ZeroDuration());
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    return *std::move(snapshot);
  }

  // A bucket's state and parameters, as a step does.
  void Update(int own, StepNumber step) {
    store_->BeginWrite(own);
    for (const BucketSpan& span : store_->own_buckets()[own].bucket->spans) {
      std::fill_n(values_[span.parameter].begin() + span.parameter_offset_elements, span.elements,
                  static_cast<float>(step));
    }
    store_->EndWrite(own, step);
  }
  int buckets() const { return static_cast<int>(store_->own_buckets().size()); }
  void UpdateAll(StepNumber step) {
    BeginStep(step);
    for (int own = 0; own < buckets(); ++own) Update(own, step);
    EndStep(step);
  }

  void ExpectParameters(const ShardSnapshot& snapshot, float expected) {
    std::map<std::pair<int, std::string>, std::vector<double>> all = ValuesOf(snapshot);
    for (const int parameter : {0, 1}) {
      const std::vector<double>& values = all[{parameter, kParameterPart}];
      EXPECT_EQ(values.size(), parameter == 0 ? 5000 : 10);
      EXPECT_THAT(values, ::testing::Each(expected)) << parameter;
    }
  }

  std::vector<std::vector<float>> values_{std::vector<float>(5000, 0), std::vector<float>(10, 0)};
  const std::shared_ptr<FakeWrites> writes_ = std::make_shared<FakeWrites>();
  std::shared_ptr<ParameterPlace> place_;
};

TEST_F(ParametersOfStoreTest, WhatStepsWriteBeforeTheyAreCopied_IsCopiedBefore) {
  UpdateAll(1);
  for (int copied_after = 0; copied_after <= buckets(); ++copied_after) {
    const auto snapshot = Opened();
    const StepNumber step = snapshot->step();
    BeginStep(step + 1);
    for (int own = 0; own < buckets(); ++own) {
      if (own == copied_after) {
        EXPECT_EQ(snapshot->KeepParameters(), absl::OkStatus());
      }
      Update(own, step + 1);
    }
    EndStep(step + 1);
    EXPECT_EQ(snapshot->KeepParameters(), absl::OkStatus());
    UpdateAll(step + 2);
    ExpectParameters(*snapshot, static_cast<float>(step));
  }
}

TEST_F(ParametersOfStoreTest, CopiedWhileAStepWrites_AreThoseOfTheMoment) {
  for (int round = 0; round < 50; ++round) {
    const auto snapshot = Opened();
    const StepNumber step = snapshot->step();
    std::thread copies([&] { EXPECT_EQ(snapshot->KeepParameters(), absl::OkStatus()); });
    UpdateAll(step + 1);
    copies.join();
    ExpectParameters(*snapshot, static_cast<float>(step));
  }
}

TEST_F(ParametersOfStoreTest, WhatReplacesAllOfThem_HasThemCopiedBefore) {
  const auto snapshot = Opened();
  store_->snapshots().BeginParameterWrites();
  values_[0].assign(5000, 7);
  values_[1].assign(10, 7);
  EXPECT_EQ(snapshot->KeepParameters(), absl::OkStatus());
  ExpectParameters(*snapshot, 0);
}

TEST_F(ParametersOfStoreTest, ATrainerThatWritesBeforeTheyAreCopied_IsFound) {
  const auto snapshot = Opened();
  values_[0][1] = 7;
  ++writes_->count_;
  const absl::Status changed = snapshot->KeepParameters();
  EXPECT_EQ(changed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(changed.message()), ::testing::HasSubstr("the trainer of rank 0"));
}

// A write counts at its end.
TEST_F(ParametersOfStoreTest, AWriteThatEndsAfterTheyWereCopied_IsFoundTheNextTime) {
  const auto snapshot = Opened();
  values_[0][1] = 7;
  EXPECT_EQ(snapshot->KeepParameters(), absl::OkStatus());
  ++writes_->count_;
  EXPECT_EQ(snapshot->KeepParameters().code(), absl::StatusCode::kFailedPrecondition);
}

// A trainer that is killed counts as one that has written.
TEST_F(ParametersOfStoreTest, ATrainerThatWasCalledSinceTheyWereCopied_MayBeKilled) {
  for (const bool is_called : {false, true}) {
    const auto snapshot = Opened();
    snapshot->SettleParameters();
    ++writes_->calls_;
    EXPECT_EQ(snapshot->KeepParameters(), absl::OkStatus());
    if (is_called) ++writes_->calls_;
    snapshot->SettleParameters();
    writes_->says_ = false;
    EXPECT_EQ(snapshot->KeepParameters().code(),
              is_called ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable);
    writes_->says_ = true;
    ++writes_->count_;
    EXPECT_EQ(snapshot->KeepParameters().code(),
              is_called ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(ParametersOfStoreTest, ATrainerThatDoesNotSayWhatItWrites_HasThemCopiedAtOnce) {
  writes_->says_ = false;
  const auto snapshot = Opened();
  values_[0].assign(5000, 7);
  EXPECT_EQ(snapshot->KeepParameters(), absl::OkStatus());
  ExpectParameters(*snapshot, 0);
}

TEST_F(ParametersOfStoreTest, WhereATrainerMayWrite_TheyAreCopiedWhenItIsOpened) {
  const auto expect_copied = [this](absl::string_view why) {
    SCOPED_TRACE(why);
    values_ = {std::vector<float>(5000, 1), std::vector<float>(10, 1)};
    auto memory = std::make_shared<ParameterMemory>(*place_->Get());
    memory->values.clear();
    for (const std::vector<float>& values : values_) memory->values.emplace_back(values.data());
    place_->Set(memory);
    const auto snapshot = Opened();
    values_[0].assign(5000, 2);
    values_[1].assign(10, 2);
    ++writes_->count_;
    EXPECT_EQ(snapshot->KeepParameters(), absl::OkStatus());
    ExpectParameters(*snapshot, 1);
  };
  writes_->expected_ = true;
  expect_copied("it is known to");
  writes_->expected_ = false;
  options_.contents.parameters_later = false;
  expect_copied("nobody would look");
  options_.contents.parameters_later = true;
  auto memory = std::make_shared<ParameterMemory>(*place_->Get());
  memory->writes = nullptr;
  place_->Set(memory);
  expect_copied("nobody knows");
}

TEST_F(ParametersOfStoreTest, MemoryThatAnotherStoreWrites_IsNotCopiedAnyMore) {
  const auto snapshot = Opened();
  store_->Retire();
  EXPECT_EQ(snapshot->KeepParameters().code(), absl::StatusCode::kAborted);
}

// Otherwise another snapshot's copies would be written over.
TEST_F(StoreSnapshotTest, ParametersThatADeviceStillCopies_KeepTheirMemory) {
  testing::FakeDevices devices;
  const std::shared_ptr<DeviceApi> device = devices.Add("cuda:0", "GPU-0");
  const std::shared_ptr<void> stream = *device->NewStream();
  const auto access = *DeviceAccess::Create(device);
  const int64_t bytes = ParameterCopies::BytesFor(options_.shape, 0);
  const auto pinned =
      *SnapshotMemory::Create({bytes, false, 0, &MemoryBudget::Unlimited(), device});
  const std::vector<float> a(5000, 1);
  const std::vector<float> b(10, 1);
  const auto memory = std::make_shared<ParameterMemory>();
  memory->values = {a.data(), b.data()};
  memory->stream = stream.get();
  int looks = 0;
  devices.Enqueue(stream.get(), [&] { return ++looks > 20; });  // backward takes its time
  auto copies = *ParameterCopies::Allocate(options_.shape, 0, *pinned);
  ASSERT_EQ(copies->BeginDeviceCopy(memory, *access, *access->version()), absl::OkStatus());
  ASSERT_LT(looks, 20);
  copies.reset();
  const SnapshotMemory::Piece others = *pinned->Take(bytes);
  std::fill_n(others.get(), bytes, 7);
  for (int i = 0; i < 30; ++i) devices.RunWhatCanRun();
  EXPECT_EQ(std::count(others.get(), others.get() + bytes, 7), bytes);
}

// Their trainer has another process: its work does not wait for the copy, and it is asked.
TEST_F(StoreSnapshotTest, ParametersThatADeviceCopies_AreRefusedWhereTheirTrainerMayHaveWritten) {
  testing::FakeDevices devices;
  const std::shared_ptr<DeviceApi> device = devices.Add("cuda:0", "GPU-0");
  const std::shared_ptr<void> stream = *device->NewStream();
  const auto access = *DeviceAccess::Create(device);
  const int64_t bytes = ParameterCopies::BytesFor(options_.shape, 0);
  const auto pinned =
      *SnapshotMemory::Create({bytes, false, 0, &MemoryBudget::Unlimited(), device});
  const std::vector<float> a(5000, 1);
  const std::vector<float> b(10, 1);
  const auto writes = std::make_shared<FakeWrites>();
  writes->calls_ = 1;
  const auto memory = std::make_shared<ParameterMemory>();
  memory->values = {a.data(), b.data()};
  memory->stream = stream.get();
  memory->writes = writes;
  const auto kept = [&](const std::function<void()>& meanwhile) {
    auto copies = *ParameterCopies::Allocate(options_.shape, 0, *pinned);
    EXPECT_EQ(copies->BeginDeviceCopy(memory, *access, *access->version()), absl::OkStatus());
    meanwhile();
    return copies->Keep();
  };
  EXPECT_EQ(kept([] {}), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(kept([&] { ++writes->count_; })));
  EXPECT_TRUE(absl::IsUnavailable(kept([&] { writes->says_ = false; })));
  writes->says_ = true;
  // Who goes on writing does so behind the copy, between its calls.
  writes->expected_ = true;
  EXPECT_EQ(kept([&] { ++writes->count_; }), absl::OkStatus());
  // One of this process puts its work on that stream.
  writes->expected_ = false;
  writes->calls_ = 0;
  EXPECT_EQ(kept([&] { ++writes->count_; }), absl::OkStatus());
}

class CodedStoreSnapshotTest : public StoreSnapshotTest {
 protected:
  CodedStoreSnapshotTest() : StoreSnapshotTest(StateFormat::kInt8Dynamic) {}
};

TEST_F(CodedStoreSnapshotTest, SlotsIn8Bits_AreGivenAsFloat32) {
  EXPECT_GT(store_->snapshots().bytes(), 0);
  Step(1);
  const auto snapshot = OpenStoreSnapshot(options_, absl::ZeroDuration());
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ExpectStep(**snapshot, 1);
  Step(2);
  ExpectStep(**snapshot, 1);
}

TEST_F(CodedStoreSnapshotTest, SlotsIn8Bits_AreAlsoGivenAsTheyAreKept) {
  using KeptArray = ShardSnapshot::KeptArray;
  Step(1);
  const auto snapshot = OpenStoreSnapshot(options_, absl::ZeroDuration());
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  Step(2);
  int coded = 0;
  for (size_t i = 0; i < (*snapshot)->parts().size(); ++i) {
    const ShardSnapshot::Part& part = (*snapshot)->parts()[i];
    const auto index = static_cast<int>(i);
    if (!part.code.has_value()) {
      EXPECT_EQ((*snapshot)->ReadKept(index, KeptArray::kValues, 0, part.elements).data,
                (*snapshot)->Read(index, 0, part.elements).data);
      continue;
    }
    ++coded;
    const bool is_signed = part.slot == "exp_avg";
    EXPECT_EQ(*part.code, is_signed ? BlockCode::kDynamicSigned : BlockCode::kDynamicUnsigned);
    // From the second block on.
    const int64_t first = std::min<int64_t>(part.elements, 256);
    CodedArray kept;
    kept.code = *part.code;
    const auto at = [&](KeptArray array) {
      return const_cast<char*>(
          (*snapshot)->ReadKept(index, array, first, part.elements - first).data);
    };
    kept.codes = reinterpret_cast<uint8_t*>(at(KeptArray::kValues));
    kept.scales = at(KeptArray::kScales);
    std::vector<float> values(part.elements - first);
    Decode(kept, part.elements - first, values.data());
    EXPECT_THAT(values, ::testing::Each(1.0f)) << i;
  }
  EXPECT_GT(coded, 0);
}

}  // namespace
}  // namespace optshard

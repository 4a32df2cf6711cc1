#include "server/shard/state/shard_state.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/block_code.h"
#include "common/generation_shape.h"
#include "common/link/memory_budget.h"
#include "common/optimizer_spec.h"
#include "common/plan.h"
#include "gtest/gtest.h"
#include "server/shard/state/shard_store.h"
#include "server/update/group_update.h"
#include "tests/testing/fake_device.h"

namespace optshard {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// The second of two ranks: it owns the end of "a", whose slots are in 8 bits, and all of "b", which
// has corrections. In memory of the host, and on a device.
class ShardStateTest : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int kA = 0;
  static constexpr int kB = 1;
  static constexpr int64_t kEndOfA = 9001;
  static constexpr int kValues = StateAccess::kParameterValues;
  // Of "a" and of "b".
  static constexpr int kAverage = 0;
  static constexpr int kStepOfA = 2;
  static constexpr int kCorrectionOfB = 2;
  static constexpr int kMasterOfB = 2;  // where the masters have 32 bits
  static constexpr int kStepOfB = 3;

  ShardStateTest() { Make(StateFormat::kInt8Dynamic); }

  void Make(StateFormat format, int master_weight_bits = 24) {
    spec_.world_size = 2;
    spec_.space = ParameterSpace(
        {GroupSpec{{{"a", {kEndOfA}, DType::kFloat32}, {"b", {2000}, DType::kBFloat16}}}});
    spec_.rules = {{"adam"}};
    spec_.policy = PartitionPolicy::kBalanced;
    spec_.buckets = {4096, 1024};
    spec_.state.master_weights = true;
    spec_.state.master_weight_bits = master_weight_bits;
    spec_.state.format = format;
    const auto groups =
        std::make_shared<const std::vector<GroupUpdate>>(ValidateGroups(spec_).value());
    const auto shape = GenerationShape::Make(
        spec_, MakePlan(2, spec_.space, spec_.policy, {"node", "node"}).value());
    ShardStore::Options store;
    store.shape = shape;
    store.rank = 1;
    store.TakeSlotsOf(*groups);
    if (GetParam()) store.device = device_;
    store_ = ShardStore::Create(store).value();
    ShardState::Options options;
    options.shape = shape;
    options.groups = groups;
    options.rank = 1;
    options.store = store_.get();
    options.budget = &budget_;
    state_ = std::make_unique<ShardState>(options);
    begin_ = shape->slices(1)[0].offset_elements;
  }

  // What this rank owns of kA, in windows some of which reach over the ends of buckets. The others
  // can be filled in place. Returns how many were.
  int StageOfA(int slot, absl::Span<const float> values, bool in_place = false) {
    constexpr int64_t kWindow = 600;
    const auto elements = static_cast<int64_t>(values.size());
    int filled = 0;
    for (int64_t begin = 0; begin < elements; begin += kWindow) {
      const int64_t count = std::min(kWindow, elements - begin);
      const absl::Span<const char> bytes(reinterpret_cast<const char*>(&values[begin]),
                                         sizeof(float) * count);
      if (in_place) {
        const auto memory =
            state_->StagedMemory(kA, slot, begin_ + begin, static_cast<int64_t>(bytes.size()));
        EXPECT_TRUE(memory.ok()) << memory.status();
        if (memory.ok() && !memory->empty()) {
          EXPECT_EQ(memory->size(), bytes.size());
          std::copy(bytes.begin(), bytes.end(), memory->begin());
          ++filled;
          continue;
        }
      }
      const absl::Status staged = state_->StageBytes(kA, slot, begin_ + begin, bytes);
      EXPECT_TRUE(staged.ok()) << staged;
    }
    return filled;
  }

  std::vector<double> All(int parameter, int slot) {
    const bool is_one = state_->Slots(parameter)[slot].is_scalar();
    const int64_t offset = parameter == kA && !is_one ? begin_ : 0;
    const int64_t end = parameter == kA ? kEndOfA : 2000;
    std::vector<double> values(is_one ? 1 : end - offset);
    const absl::Status read = state_->Read(parameter, slot, offset, absl::MakeSpan(values));
    EXPECT_TRUE(read.ok()) << read;
    return values;
  }

  std::vector<std::vector<double>> Everything() {
    std::vector<std::vector<double>> all;
    for (const int parameter : {kA, kB}) {
      for (size_t s = 0; s < state_->Slots(parameter).size(); ++s) {
        all.push_back(All(parameter, static_cast<int>(s)));
      }
    }
    return all;
  }

  void ExpectRefused(const absl::Status& status, absl::string_view said) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(said)));
  }

  static constexpr int64_t kLimit = int64_t{1} << 30;
  MemoryBudget budget_{kLimit};
  testing::FakeDevices devices_;
  const std::shared_ptr<DeviceApi> device_ = devices_.Add("cuda:0", "GPU-0");
  OptimizerSpec spec_;
  std::unique_ptr<ShardStore> store_;
  std::unique_ptr<ShardState> state_;
  int64_t begin_ = 0;  // of what this rank owns of "a"
};

TEST_P(ShardStateTest, WrittenElements_AreRead_AndOthersStay) {
  ASSERT_GT(begin_, 0);
  ASSERT_LT(begin_, kEndOfA - 1024);
  const int64_t first = kEndOfA / kCodeGrid * kCodeGrid;  // of the last block
  const std::vector<double> last(kEndOfA - first, 3);
  ASSERT_TRUE(state_->Write(kA, kAverage, first, last).ok());
  const std::vector<double> average = All(kA, kAverage);
  for (int64_t i = begin_; i < kEndOfA; ++i) {
    ASSERT_EQ(average[i - begin_], i < first ? 0 : 3) << i;
  }
  const std::vector<double> corrections = {-128, 0, 127};
  ASSERT_TRUE(state_->Write(kB, kCorrectionOfB, 5, corrections).ok());
  const std::vector<double> read = All(kB, kCorrectionOfB);
  EXPECT_EQ(std::vector<double>(read.begin() + 5, read.begin() + 8), corrections);
  EXPECT_EQ(read[8], 0);
  ASSERT_TRUE(state_->Write(kB, kStepOfB, 0, {7}).ok());
  EXPECT_THAT(All(kB, kStepOfB), Each(7));
  EXPECT_THAT(All(kA, kStepOfA), Each(0));
}

// Codes of values that are some codes' already become those.
TEST_P(ShardStateTest, ValuesThatWereRead_AreWrittenWithoutLoss) {
  std::vector<double> values(3 * kCodeGrid);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1e-3 * static_cast<double>(i * i % 977);
  ASSERT_EQ(state_->Write(kA, kAverage, begin_, values), absl::OkStatus());
  const std::vector<double> kept = All(kA, kAverage);
  const absl::Span<const double> part = absl::MakeConstSpan(kept).subspan(kCodeGrid, 2 * kCodeGrid);
  ASSERT_EQ(state_->Write(kA, kAverage, begin_ + kCodeGrid, part), absl::OkStatus());
  EXPECT_EQ(All(kA, kAverage), kept);
}

TEST_P(ShardStateTest, WhatIsNotKeptHere_IsRefusedAndNothingChanges) {
  struct Case {
    int parameter;
    int slot;
    int64_t offset;
    int64_t elements;
    const char* said;
  };
  const Case cases[] = {
      {-1, 0, 0, 1, "no parameter -1"},
      {2, 0, 0, 1, "has 0 to 1"},
      {kA, -1, begin_, 256, "no slot -1"},
      {kA, 3, begin_, 256, "has 0 to 2"},
      {kA, kAverage, 0, 256, "not all owned by rank 1"},
      {kA, kAverage, begin_ - 256, 512, "not all owned by rank 1"},
      {kA, kAverage, kEndOfA - 100, 101, "not all owned by rank 1"},
      {kA, kAverage, -256, 256, "not all owned by rank 1"},
      {kA, kAverage, std::numeric_limits<int64_t>::max(), 256, "not all owned by rank 1"},
      {kB, kCorrectionOfB, 1999, 2, "not all owned by rank 1"},
      {kB, kStepOfB, 1, 1, "has 1 element"},
      {kB, kStepOfB, 0, 2, "has 1 element"},
      {kB, kStepOfB, 0, 0, "is one number"},
  };
  const auto before = Everything();
  for (const Case& each : cases) {
    SCOPED_TRACE(each.said);
    std::vector<double> values(each.elements, 1);
    ExpectRefused(state_->Write(each.parameter, each.slot, each.offset, values), each.said);
    ExpectRefused(state_->Read(each.parameter, each.slot, each.offset, absl::MakeSpan(values)),
                  each.said);
    EXPECT_THAT(values, Each(1));
  }
  EXPECT_EQ(Everything(), before);
}

TEST_P(ShardStateTest, ValuesThatASlotCannotTake_AreRefusedAndNothingChanges) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto before = Everything();
  for (const double no_count : {-1.0, 0.5, nan, 1e300, -0x1p-1074}) {
    ExpectRefused(state_->Write(kB, kStepOfB, 0, {no_count}), "expected 0, 1, 2");
  }
  for (const double no_correction : {-129.0, 128.0, 0.5, nan}) {
    ExpectRefused(state_->Write(kB, kCorrectionOfB, 0, {1, no_correction}), "-128 to 127");
  }
  const std::vector<double> values(2 * kCodeGrid, 1);
  const auto blocks = absl::MakeConstSpan(values);
  ExpectRefused(state_->Write(kA, kAverage, begin_ + 1, blocks.first(kCodeGrid)), "whole blocks");
  ExpectRefused(state_->Write(kA, kAverage, begin_, blocks.first(kCodeGrid - 1)), "whole blocks");
  EXPECT_EQ(Everything(), before);
}

// --- What is staged.

TEST_P(ShardStateTest, StagedState_IsNotReadBeforeItIsTaken) {
  ASSERT_TRUE(state_->Write(kB, kAverage, 0, {5}).ok());
  ASSERT_TRUE(state_->Write(kB, kStepOfB, 0, {7}).ok());
  const std::vector<std::vector<double>> before = Everything();
  ASSERT_TRUE(state_->BeginStaging(Replacing::kState).ok());
  const std::vector<double> values(kEndOfA - begin_, 3);
  ASSERT_TRUE(state_->Stage(kA, kAverage, begin_, values).ok());
  ASSERT_TRUE(state_->Stage(kB, kStepOfB, 0, {40}).ok());
  EXPECT_EQ(Everything(), before);
  ASSERT_EQ(store_->Take(state_->staged()->store(), absl::InfiniteFuture()), absl::OkStatus());
  EXPECT_EQ(All(kA, kAverage), values);
  EXPECT_EQ(All(kB, kStepOfB), std::vector<double>{40});
  // What was not staged is as before the first step.
  EXPECT_THAT(All(kB, kAverage), Each(0));
}

TEST_P(ShardStateTest, StagedAgain_BeginsAnew) {
  ASSERT_TRUE(state_->BeginStaging(Replacing::kAll).ok());
  ASSERT_TRUE(state_->Stage(kB, kAverage, 0, {5}).ok());
  ASSERT_TRUE(state_->BeginStaging(Replacing::kState).ok());
  EXPECT_EQ(state_->staged()->what(), Replacing::kState);
  ASSERT_EQ(store_->Take(state_->staged()->store(), absl::InfiniteFuture()), absl::OkStatus());
  EXPECT_THAT(All(kB, kAverage), Each(0));
}

TEST_P(ShardStateTest, WhatCannotBeStaged_IsRefused) {
  EXPECT_TRUE(absl::IsAborted(state_->Stage(kB, kAverage, 0, {5})));
  const std::string bytes(8, 'x');
  EXPECT_TRUE(absl::IsAborted(state_->StageBytes(kB, kValues, 0, bytes)));
  ASSERT_TRUE(state_->BeginStaging(Replacing::kState).ok());
  ExpectRefused(state_->Stage(kB, kStepOfB, 0, {0.5}), "expected 0, 1, 2");
  ExpectRefused(state_->Stage(kA, kAverage, begin_ - kCodeGrid, {1}), "not all owned by rank 1");
  ExpectRefused(state_->StageBytes(kB, kValues, 0, bytes), "where the parameters are staged too");
  ASSERT_TRUE(state_->BeginStaging(Replacing::kAll).ok());
  ExpectRefused(state_->StageBytes(2, kValues, 0, bytes), "no parameter 2");
  ExpectRefused(state_->StageBytes(-1, kValues, 0, bytes), "no parameter -1");
  ExpectRefused(state_->StageBytes(kB, kValues, 0, bytes.substr(1)), "whole elements of 2 bytes");
  ExpectRefused(state_->StageBytes(kB, kValues, 1997, bytes), "that the rank owns");
  ExpectRefused(state_->StageBytes(kB, kValues, -1, bytes), "that the rank owns");
  ExpectRefused(state_->StageBytes(kA, kValues, begin_ - 1, bytes), "that the rank owns");
  EXPECT_TRUE(state_->StageBytes(kB, kValues, 1996, bytes).ok());
  ExpectRefused(state_->StageBytes(kB, kStepOfB, 0, bytes), "and no codes");
  ExpectRefused(state_->StageBytes(kB, kCorrectionOfB, 0, bytes), "and no codes");
  ExpectRefused(state_->StageBytes(kA, kAverage, begin_, bytes), "and no codes");
}

TEST_P(ShardStateTest, MemoryOfWhatIsStaged_CanBeFilledWhereItIsInARow) {
  Make(StateFormat::kFloat32, 32);
  EXPECT_TRUE(absl::IsAborted(state_->StagedMemory(kA, kAverage, begin_, 4).status()));
  ASSERT_TRUE(state_->BeginStaging(Replacing::kAll).ok());
  std::vector<float> values(kEndOfA - begin_);
  std::iota(values.begin(), values.end(), 0.5f);
  const std::vector<double> expected(values.begin(), values.end());
  // A master is a slot like any other.
  const auto master = state_->StagedMemory(kB, kMasterOfB, 0, 8);
  ASSERT_TRUE(master.ok()) << master.status();
  ASSERT_EQ(master->size(), 8u);
  const float masters[] = {0.25f, 0.75f};
  std::memcpy(master->data(), masters, sizeof(masters));
  for (const int slot : {kAverage, kValues}) {
    EXPECT_GT(StageOfA(slot, values, /*in_place=*/true), 3) << "slot " << slot;
    // Beyond the end of the first bucket.
    const auto memory = state_->StagedMemory(kA, slot, begin_, 4 * (kEndOfA - begin_));
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_TRUE(memory->empty());
    ExpectRefused(state_->StagedMemory(kA, slot, begin_ - 1, 8).status(),
                  slot == kValues ? "that the rank owns" : "not all owned by rank 1");
  }
  for (const StagedState::Values& part : state_->staged()->parameters()) {
    if (part.parameter != kA) continue;
    const float* const from = part.from.As<float>();
    const auto first = expected.begin() + (part.offset_elements - begin_);
    EXPECT_TRUE(std::equal(from, from + part.elements, first));
  }
  ExpectRefused(state_->StagedMemory(kA, kStepOfA, 0, 4).status(), "and no codes");
  ASSERT_EQ(store_->Take(state_->staged()->store(), absl::InfiniteFuture()), absl::OkStatus());
  EXPECT_EQ(All(kA, kAverage), expected);
  const std::vector<double> taken = All(kB, kMasterOfB);
  EXPECT_EQ(taken[0], 0.25);
  EXPECT_EQ(taken[1], 0.75);
}

TEST_P(ShardStateTest, StagedBytes_AreTheSlotsElements) {
  Make(StateFormat::kFloat32);
  ASSERT_TRUE(state_->BeginStaging(Replacing::kState).ok());
  std::vector<float> values(kEndOfA - begin_);
  std::iota(values.begin(), values.end(), 0.5f);
  StageOfA(kAverage, values);
  const std::string bytes(8, 'x');
  ExpectRefused(state_->StageBytes(kA, kAverage, begin_, bytes.substr(1)), "whole elements of 4");
  ExpectRefused(state_->StageBytes(kA, kAverage, kEndOfA - 1, bytes), "not all owned by rank 1");
  ExpectRefused(state_->StageBytes(kA, kStepOfA, 0, bytes), "and no codes");
  for (const int64_t offset : {begin_, kEndOfA}) {
    EXPECT_TRUE(state_->StageBytes(kA, kAverage, offset, {}).ok()) << "none, at " << offset;
  }
  ASSERT_EQ(store_->Take(state_->staged()->store(), absl::InfiniteFuture()), absl::OkStatus());
  EXPECT_EQ(All(kA, kAverage), std::vector<double>(values.begin(), values.end()));
  EXPECT_THAT(All(kB, kAverage), Each(0));
}

TEST_P(ShardStateTest, StagedParameters_LieByParameterWhateverTheWindows) {
  ASSERT_TRUE(state_->BeginStaging(Replacing::kAll).ok());
  std::vector<float> values(kEndOfA - begin_);
  std::iota(values.begin(), values.end(), 0.0f);
  StageOfA(kValues, values);
  int64_t elements = 0;
  for (const StagedState::Values& each : state_->staged()->parameters()) {
    if (each.parameter != kA) continue;
    for (int64_t i = 0; i < each.elements; ++i) {
      ASSERT_EQ(each.from.As<float>()[i], values[each.offset_elements - begin_ + i]);
    }
    elements += each.elements;
  }
  EXPECT_EQ(elements, kEndOfA - begin_);
}

TEST_P(ShardStateTest, StagedState_IsTakenFromTheBudgetAndGivenBack) {
  for (const Replacing what : {Replacing::kState, Replacing::kAll}) {
    ASSERT_TRUE(state_->BeginStaging(what).ok());
    const int64_t bytes = budget_.reserved_bytes();
    EXPECT_GE(bytes, store_->BytesAlike());
    ASSERT_TRUE(state_->DropStaged().ok());
    EXPECT_EQ(budget_.reserved_bytes(), 0);
    ASSERT_TRUE(budget_.Reserve(kLimit - bytes + 1, "something else").ok());
    const absl::Status refused = state_->BeginStaging(what);
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    for (const std::string& said : {absl::StrCat("needs ", bytes),
                                    absl::StrCat("limit is ", kLimit), std::string("rank 1")}) {
      EXPECT_THAT(std::string(refused.message()), HasSubstr(said));
    }
    EXPECT_EQ(state_->staged(), nullptr);
    EXPECT_EQ(budget_.reserved_bytes(), kLimit - bytes + 1);
    budget_.Release(kLimit - bytes + 1);
  }
}

TEST_P(ShardStateTest, StateOfParametersOfNoStep_IsNotStagedAlone) {
  for (const bool by_a_step : {true, false}) {
    if (by_a_step) {
      store_->ledger().SetProgress({1, StepOutcome::kTorn});
    } else {
      store_->ledger().SetReplacing(Replacing::kAll);
    }
    EXPECT_TRUE(absl::IsDataLoss(state_->BeginStaging(Replacing::kState)));
    EXPECT_TRUE(state_->BeginStaging(Replacing::kAll).ok());
    store_->ledger().SetReplacing(Replacing::kNothing);
  }
  store_->ledger().SetReplacing(Replacing::kState);
  EXPECT_TRUE(state_->BeginStaging(Replacing::kState).ok());
}

TEST_P(ShardStateTest, StateOfAWriteThatNeverEnded_IsDataLoss) {
  store_->BeginWrite(0);
  std::vector<double> values(256);
  const absl::Status torn = state_->Read(kA, kAverage, begin_, absl::MakeSpan(values));
  EXPECT_TRUE(absl::IsDataLoss(torn)) << torn;
}

INSTANTIATE_TEST_SUITE_P(Memory, ShardStateTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "OnADevice" : "OfTheHost"; });

}  // namespace
}  // namespace optshard

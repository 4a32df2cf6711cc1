#include "server/shard/state/shard_store.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "common/block_code.h"
#include "common/generation_shape.h"
#include "common/optimizer_spec.h"
#include "common/plan.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using ::testing::Each;

const ScalarSlots* NoScalarSlots(int) { return nullptr; }

std::shared_ptr<const GenerationShape> ShapeOf(const OptimizerSpec& spec) {
  return GenerationShape::Make(spec, MakePlan(1, spec.space, spec.policy, {"node"}).value());
}

// One rank owns "a" (4,000 elements in many buckets) and "b".
class ShardStoreTest : public ::testing::Test {
 protected:
  ShardStoreTest() {
    GroupSpec group;
    for (const int64_t elements : {4000, 10}) {
      ParameterSpec spec;
      spec.name = elements == 4000 ? "a" : "b";
      spec.shape = {elements};
      group.parameters.push_back(spec);
    }
    spec_.space = ParameterSpace({group});
    spec_.buckets = {2048, 256};
    ShardStore::Options options = TwoSlots();
    options.keep_reduced_gradients = true;
    options.scalar_slots = 2;
    options.initial_scalar_slots = {{0.5, 0.25}};
    store_ = *ShardStore::Create(options);
  }

  ShardStore::Options TwoSlots() const {
    ShardStore::Options options;
    options.shape = ShapeOf(spec_);
    options.slots = {std::vector<Slot>(2)};
    return options;
  }

  void WriteAll(StepNumber step) {
    for (size_t own = 0; own < store_->own_buckets().size(); ++own) Write(own, step);
    store_->CountStep(step, {true, true}, NoScalarSlots);
  }

  void Write(int own, StepNumber step) {
    const ShardStore::OwnBucket& bucket = store_->own_buckets()[own];
    store_->BeginWrite(own);
    for (size_t span = 0; span < bucket.states.size(); ++span) {
      for (const SlotArray& slot : bucket.states[span].slots) {
        if (!slot) continue;
        std::fill_n(slot.As<float>(), bucket.bucket->spans[span].elements,
                    static_cast<float>(step));
      }
    }
    store_->EndWrite(own, step);
  }

  OptimizerSpec spec_;
  std::unique_ptr<ShardStore> store_;
};

TEST_F(ShardStoreTest, NewSlots_AreZeroAndAligned) {
  ASSERT_GT(store_->own_buckets().size(), 4);
  for (const ShardStore::OwnBucket& own : store_->own_buckets()) {
    for (size_t span = 0; span < own.states.size(); ++span) {
      const ShardStore::State& state = own.states[span];
      for (int s = 0; s < 2; ++s) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(state.slots[s].data()) % 64, 0);
        for (int64_t i = 0; i < own.bucket->spans[span].elements; ++i) {
          ASSERT_EQ(state.slots[s].As<float>()[i], 0.0f);
        }
      }
      EXPECT_EQ(state.slots[2], nullptr);
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(own.reduced_gradient.data()) % 64, 0);
  }
  EXPECT_EQ(store_->state_bytes(), 4010 * 2 * 4);
}

TEST_F(ShardStoreTest, SlotsAndGradientOfAWholeParameter_AreInOnePiece) {
  const auto& own = store_->own_buckets();
  const SlotArray first = own[0].states[0].slots[1];
  int spans = 0;
  for (const ShardStore::OwnBucket& bucket : own) {
    for (size_t s = 0; s < bucket.states.size(); ++s) {
      const BucketSpan& span = bucket.bucket->spans[s];
      if (span.parameter != 0) continue;
      EXPECT_EQ(bucket.states[s].slots[1], first.From(span.parameter_offset_elements));
      EXPECT_EQ(bucket.reduced_gradient.From(span.bucket_offset_elements),
                own[0].reduced_gradient.From(span.parameter_offset_elements));
      ++spans;
    }
  }
  EXPECT_GT(spans, 4);
}

TEST_F(ShardStoreTest, Owns_OnlyWhatItsBucketsHold) {
  EXPECT_TRUE(store_->Owns(0, 0, 4000));
  EXPECT_TRUE(store_->Owns(0, 3999, 1));
  EXPECT_TRUE(store_->Owns(1, 10, 0));
  EXPECT_FALSE(store_->Owns(0, 3999, 2));
  EXPECT_FALSE(store_->Owns(1, 10, 1));
}

TEST_F(ShardStoreTest, OwnsOfARangeBeyondAllNumbers_IsFalse) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(store_->Owns(0, kMax, 1));
  EXPECT_FALSE(store_->Owns(0, 1, kMax));
  EXPECT_FALSE(store_->Owns(0, kMax, kMax));
}

TEST_F(ShardStoreTest, ReadDuringAWrite_IsRefusedUntilItEnded) {
  WriteAll(1);
  std::vector<double> out(4000);
  EXPECT_EQ(*store_->TryRead(0, 0, 0, absl::MakeSpan(out)), StepNumber{1});
  store_->BeginWrite(2);
  EXPECT_FALSE(store_->TryRead(0, 0, 0, absl::MakeSpan(out))->has_value());
  store_->EndWrite(2, 2);
  // Now one bucket is a step ahead of the others: no step's values.
  EXPECT_FALSE(store_->TryRead(0, 0, 0, absl::MakeSpan(out))->has_value());
  for (size_t own = 0; own < store_->own_buckets().size(); ++own) {
    if (own != 2) store_->MarkUnchanged(own, 2);
  }
  EXPECT_EQ(*store_->TryRead(0, 0, 0, absl::MakeSpan(out)), StepNumber{2});
}

TEST_F(ShardStoreTest, FinishedStep_CountsOnlyUpdatedParameters) {
  store_->CountStep(1, {true, true}, NoScalarSlots);
  store_->CountStep(2, {false, true}, NoScalarSlots);
  EXPECT_EQ(store_->step_count(0), 1);
  EXPECT_EQ(store_->step_count(1), 2);
  EXPECT_EQ(store_->TryReadStepCount(0)->count, 1);
  EXPECT_EQ(store_->TryReadStepCount(0)->step, 2);
}

TEST_F(ShardStoreTest, FinishedStep_TakesScalarSlotsOfOwnedAndUpdatedParameters) {
  EXPECT_EQ(store_->scalar_slots(0), (ScalarSlots{0.5, 0.25}));
  const ScalarSlots after{3, 4};
  store_->CountStep(1, {true, true}, [&](int p) { return p == 0 ? &after : nullptr; });
  store_->CountStep(2, {false, true}, NoScalarSlots);
  EXPECT_EQ(store_->TryReadStepCount(0)->scalar_slots, after);
  EXPECT_EQ(store_->scalar_slots(1), (ScalarSlots{0.5, 0.25}));
}

TEST_F(ShardStoreTest, ReadersBesideAWriter_SeeOneStepOrNothing) {
  std::atomic<bool> done{false};
  int64_t reads = 0;
  std::thread reader([&] {
    std::vector<double> out(4000);
    // Also once after the writer is done, so that there is at least one.
    for (bool last = false; !last;) {
      last = done;
      for (const int64_t offset : {0, 600, 3900}) {
        const absl::Span<double> part = absl::MakeSpan(out).subspan(0, 4000 - offset);
        const absl::optional<StepNumber> step = *store_->TryRead(0, 1, offset, part);
        if (!step.has_value()) continue;
        ++reads;
        for (const double value : part) ASSERT_EQ(value, static_cast<double>(*step));
      }
    }
  });
  for (StepNumber step = 1; step <= 3000; ++step) WriteAll(step);
  done = true;
  reader.join();
  EXPECT_GE(reads, 3);
}

TEST_F(ShardStoreTest, AnotherStoreOverTheSameMemory_HasTheState) {
  const ShardStore::Options options = TwoSlots();
  const ShardMemory memory = *ShardMemory::Private(ShardStore::BytesFor(options), "a test");
  store_ = *ShardStore::Create(options, {memory});
  store_->ledger().Begin(3, StepProgress());
  WriteAll(1);
  store_->ledger().SetProgress({1, StepOutcome::kIdle});
  store_.reset();

  const std::unique_ptr<ShardStore> other = *ShardStore::Create(options, {memory});
  EXPECT_EQ(other->step_count(0), 1u);
  EXPECT_EQ(other->ledger().progress().finished, 1u);
  std::vector<double> read(4000);
  EXPECT_EQ(*other->TryRead(0, 1, 0, absl::MakeSpan(read)), absl::optional<StepNumber>(1));
  EXPECT_EQ(read[3999], 1);
}

// Its process was killed.
TEST_F(ShardStoreTest, WriteThatNeverEnded_DoesNotStopTheNextStoresReaders) {
  const ShardStore::Options options = TwoSlots();
  const ShardMemory memory = *ShardMemory::Private(ShardStore::BytesFor(options), "a test");
  store_ = *ShardStore::Create(options, {memory});
  store_->ledger().Begin(1, StepProgress());
  store_->BeginWrite(0);
  store_->ledger().counts_version().sequence.fetch_add(1);
  std::vector<double> read(4000);
  EXPECT_FALSE(store_->TryRead(0, 0, 0, absl::MakeSpan(read))->has_value());

  store_ = *ShardStore::Create(options, {memory});
  EXPECT_TRUE(store_->TryRead(0, 0, 0, absl::MakeSpan(read))->has_value());
  EXPECT_TRUE(store_->TryReadStepCount(0).has_value());
  store_->BeginWrite(0);
  EXPECT_FALSE(store_->TryRead(0, 0, 0, absl::MakeSpan(read))->has_value());
}

TEST_F(ShardStoreTest, SlotsWithAnInitialValue_BeginWithIt_AndAreLeftToAnotherStore) {
  ShardStore::Options options;
  options.shape = ShapeOf(spec_);
  options.slots = {{Slot{"sum", "", 0.5f}, Slot{"average", "", 0}}};
  const ShardMemory memory = *ShardMemory::Private(ShardStore::BytesFor(options), "a test");
  store_ = *ShardStore::Create(options, {memory});
  std::vector<double> read(4000);
  for (const int slot : {0, 1}) {
    ASSERT_TRUE(store_->TryRead(0, slot, 0, absl::MakeSpan(read))->has_value());
    EXPECT_THAT(read, Each(options.slots[0][slot].initial)) << slot;
  }
  store_->ledger().Begin(1, StepProgress());
  WriteAll(1);
  store_ = *ShardStore::Create(options, {memory});
  ASSERT_TRUE(store_->TryRead(0, 0, 0, absl::MakeSpan(read))->has_value());
  EXPECT_THAT(read, Each(1.0f)) << "the state of the store before";
}

// Each dtype's slots and masters, as the options have them.
TEST_F(ShardStoreTest, StateOptions_DecideTypesAndBytes) {
  constexpr struct {
    DType parameter;
    StateFormat state;
    DType slot;
    int64_t bytes;  // an element, of two slots and a master
    int master_bits = 32;
  } kTable[] = {{DType::kFloat32, StateFormat::kFloat32, DType::kFloat32, 8},
                {DType::kFloat32, StateFormat::kBFloat16, DType::kBFloat16, 4},
                {DType::kFloat64, StateFormat::kBFloat16, DType::kFloat64, 16},
                {DType::kBFloat16, StateFormat::kFloat32, DType::kFloat32, 12},
                {DType::kFloat16, StateFormat::kBFloat16, DType::kBFloat16, 8},
                {DType::kBFloat16, StateFormat::kInt8Dynamic, DType::kFloat32, 12},
                {DType::kBFloat16, StateFormat::kBFloat16, DType::kBFloat16, 5, 24},
                {DType::kFloat16, StateFormat::kFloat32, DType::kFloat32, 9, 24},
                {DType::kFloat64, StateFormat::kFloat32, DType::kFloat64, 16, 24}};
  for (const auto& row : kTable) {
    SCOPED_TRACE(NameOf(row.parameter));
    ParameterSpec spec;
    spec.name = "a";
    spec.shape = {100};
    spec.dtype = row.parameter;
    OptimizerSpec optimizer;
    optimizer.space = ParameterSpace({GroupSpec{{spec}}});
    optimizer.buckets = {2048, 256};
    optimizer.state.master_weights = true;
    optimizer.state.master_weight_bits = row.master_bits;
    optimizer.state.format = row.state;
    ShardStore::Options options;
    options.shape = ShapeOf(optimizer);
    options.slots = {{Slot{"sum", "", 0.5}, Slot{"average", "", 0}}};
    const std::unique_ptr<ShardStore> store = *ShardStore::Create(options);
    EXPECT_EQ(store->state_bytes(), 100 * row.bytes);
    const ShardStore::OwnBucket& own = store->own_buckets()[0];
    EXPECT_EQ(own.states[0].slots[0].dtype(), row.slot);
    const bool has_master = SizeOf(row.parameter) == 2;
    EXPECT_EQ(static_cast<bool>(own.states[0].master), has_master && row.master_bits == 32);
    ASSERT_EQ(own.states[0].correction != nullptr, has_master && row.master_bits == 24);
    if (own.states[0].correction != nullptr) {
      own.states[0].correction[99] = -5;
      double last = 0;
      ASSERT_TRUE(
          store->TryRead(0, ShardStore::kCorrection, 99, absl::MakeSpan(&last, 1))->has_value());
      EXPECT_EQ(last, -5);
    }
    std::vector<double> read(100);
    ASSERT_TRUE(store->TryRead(0, 0, 0, absl::MakeSpan(read))->has_value());
    EXPECT_THAT(read, Each(0.5));
  }
}

// The slots of a large parameter in 8 bits beside those of a small one in float32.
TEST_F(ShardStoreTest, StateInEightBits_IsReadDecodedAndFoundAgain) {
  constexpr int64_t kLarge = 5000;
  ParameterSpec large;
  large.name = "a";
  large.shape = {kLarge};
  OptimizerSpec spec;
  spec.space = ParameterSpace({GroupSpec{{large, spec_.space.parameter(1)}}});
  spec.buckets = {4096, 256};
  for (const StateFormat format : {StateFormat::kInt8Dynamic, StateFormat::kInt8Companded}) {
    spec.state.format = format;
    ShardStore::Options options;
    options.shape = ShapeOf(spec);
    options.slots = {{Slot{"average", "", 0.5, EightBit::kSigned},
                      Slot{"square", "", 0, EightBit::kNonNegative}}};
    const ShardMemory memory = *ShardMemory::Private(ShardStore::BytesFor(options), "a test");
    std::unique_ptr<ShardStore> store = *ShardStore::Create(options, {memory});
    const int64_t scales =
        format == StateFormat::kInt8Dynamic ? 20 * sizeof(float) : 157 * sizeof(uint16_t);
    EXPECT_EQ(store->state_bytes(), 2 * (kLarge + scales) + int64_t{2} * 10 * 4);

    std::vector<float> values(kLarge);
    for (int64_t i = 0; i < kLarge; ++i) values[i] = static_cast<float>(i % 7) / 8;
    for (const ShardStore::OwnBucket& own : store->own_buckets()) {
      for (size_t s = 0; s < own.states.size(); ++s) {
        const BucketSpan& span = own.bucket->spans[s];
        const SlotArray& square = own.states[s].slots[1];
        EXPECT_EQ(square.is_coded(), span.parameter == 0);
        if (!square.is_coded()) continue;
        ASSERT_EQ(span.parameter_offset_elements % kCodeGrid, 0);
        Encode(&values[span.parameter_offset_elements], span.elements, square.coded());
      }
    }
    store->ledger().Begin(1, {1, StepOutcome::kIdle, 0});
    store = *ShardStore::Create(options, {memory});
    for (const int64_t first : {int64_t{0}, int64_t{3}, int64_t{300}, kLarge - 1}) {
      std::vector<double> read(std::min<int64_t>(kLarge - first, 1500));
      ASSERT_TRUE(store->TryRead(0, 1, first, absl::MakeSpan(read))->has_value());
      for (size_t i = 0; i < read.size(); ++i) ASSERT_NEAR(read[i], values[first + i], 0.004);
      ASSERT_TRUE(store->TryRead(0, 0, first, absl::MakeSpan(read))->has_value());
      EXPECT_THAT(read, Each(0.5));
    }
    std::vector<double> small(10);
    ASSERT_TRUE(store->TryRead(1, 0, 0, absl::MakeSpan(small))->has_value());
    EXPECT_THAT(small, Each(0.5));
  }
}

TEST_F(ShardStoreTest, MemoryOfAnotherSize_IsRefused) {
  ShardStore::Options options;
  options.shape = ShapeOf(spec_);
  options.slots = {std::vector<Slot>(2)};
  ShardMemory memory = *ShardMemory::Private(ShardStore::BytesFor(options), "a test");
  memory.bytes.slots -= 64;
  EXPECT_TRUE(absl::IsInternal(ShardStore::Create(options, {memory}).status()));
}

}  // namespace
}  // namespace optshard

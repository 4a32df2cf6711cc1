// The store of a generation with added groups, made over the one that is running.
#include <gmock/gmock.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/generation_shape.h"
#include "common/optimizer_spec.h"
#include "common/plan.h"
#include "gtest/gtest.h"
#include "server/shard/state/shard_store.h"

namespace optshard {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

GroupSpec GroupOf(const std::string& name, int64_t elements, int admission) {
  GroupSpec group;
  group.parameters = {{name, {elements}}};
  group.admission = admission;
  return group;
}

// One rank of "a" (3,000 elements); "b" (500) is added.
class ShardStoreGrowthTest : public ::testing::Test {
 protected:
  static constexpr int64_t kA = 3000;
  static constexpr int64_t kB = 500;

  ShardStoreGrowthTest()
      : before_(OptionsOf({GroupOf("a", kA, 0)})),
        after_(OptionsOf({GroupOf("a", kA, 0), GroupOf("b", kB, 1)})),
        memory_({MemoryFor(before_, 0), MemoryFor(after_, 1)}) {
    store_ = ShardStore::Create(before_, {memory_[0]}).value();
    store_->ledger().Begin(1, StepProgress());
    WriteAll(*store_, 1);
    store_->ledger().SetProgress({1, StepOutcome::kIdle, 4});
  }

  static ShardStore::Options OptionsOf(const std::vector<GroupSpec>& groups) {
    OptimizerSpec spec;
    spec.space = ParameterSpace(groups);
    spec.buckets = {2048, 256};
    ShardStore::Options options;
    options.shape =
        GenerationShape::Make(spec, MakePlan(1, spec.space, spec.policy, {"node"}).value());
    options.slots.assign(groups.size(), {Slot{"sum", "", 0.5}, Slot{"average", "", 0}});
    options.scalar_slots = 1;
    options.initial_scalar_slots.assign(groups.size(), {0.25});
    options.keep_reduced_gradients = true;
    return options;
  }

  static ShardMemory MemoryFor(const ShardStore::Options& options, int admission) {
    return ShardMemory::Private(ShardStore::BytesFor(options, admission), "a test").value();
  }

  static void WriteAll(ShardStore& store, StepNumber step) {
    for (size_t own = 0; own < store.own_buckets().size(); ++own) {
      const ShardStore::OwnBucket& bucket = store.own_buckets()[own];
      store.BeginWrite(static_cast<int>(own));
      for (size_t span = 0; span < bucket.states.size(); ++span) {
        std::fill_n(bucket.states[span].slots[0].As<float>(), bucket.bucket->spans[span].elements,
                    static_cast<float>(step));
      }
      store.EndWrite(static_cast<int>(own), step);
    }
    const ScalarSlots scalars = {static_cast<double>(step)};
    store.CountStep(step, std::vector<bool>(2, true), [&](int) { return &scalars; });
  }

  static std::vector<double> Read(const ShardStore& store, int parameter, int64_t elements) {
    std::vector<double> values(elements);
    EXPECT_EQ(*store.TryRead(parameter, 0, 0, absl::MakeSpan(values)),
              absl::optional<StepNumber>(store.TryReadStepCount(0)->step));
    return values;
  }

  const ShardStore::Options before_;
  const ShardStore::Options after_;
  const std::vector<ShardMemory> memory_;  // by admission
  std::unique_ptr<ShardStore> store_;
};

TEST_F(ShardStoreGrowthTest, Grown_HasWhatIsThereInPlace_AndInitialValues) {
  const std::unique_ptr<ShardStore> grown = store_->Grow(after_, memory_[1]).value();
  EXPECT_THAT(Read(*grown, 0, kA), Each(1));
  EXPECT_THAT(Read(*grown, 1, kB), Each(0.5));
  EXPECT_EQ(grown->own_buckets()[0].states[0].slots[0],
            store_->own_buckets()[0].states[0].slots[0]);
  EXPECT_EQ(grown->own_buckets()[0].reduced_gradient, store_->own_buckets()[0].reduced_gradient);
  EXPECT_EQ(grown->step_count(0), 1u);
  EXPECT_EQ(grown->step_count(1), 0u);
  EXPECT_EQ(grown->scalar_slots(0)[0], 1);
  EXPECT_EQ(grown->scalar_slots(1)[0], 0.25);
  EXPECT_EQ(grown->ledger().progress().finished, 1u);
  EXPECT_EQ(grown->ledger().progress().skipped, 4u);
  EXPECT_EQ(grown->state_bytes(), (kA + kB) * 2 * 4);
}

// "b" in the group of "a": the memory is as for a group of its own.
TEST_F(ShardStoreGrowthTest, GrownByAParameterOfAGroup_HasWhatIsThereInPlace_AndInitialValues) {
  GroupSpec both = GroupOf("a", kA, 0);
  both.parameters.push_back({"b", {kB}});
  both.additions = {{1, 1}};
  const ShardStore::Options after = OptionsOf({both});
  EXPECT_EQ(ShardStore::BytesFor(after, 0).slots, ShardStore::BytesFor(after_, 0).slots);
  EXPECT_EQ(ShardStore::BytesFor(after, 0).ledger, ShardStore::BytesFor(after_, 0).ledger);
  EXPECT_EQ(ShardStore::BytesFor(after, 1).slots, ShardStore::BytesFor(after_, 1).slots);
  EXPECT_EQ(ShardStore::BytesFor(after, 1).ledger, ShardStore::BytesFor(after_, 1).ledger);
  const std::unique_ptr<ShardStore> grown = store_->Grow(after, memory_[1]).value();
  EXPECT_THAT(Read(*grown, 0, kA), Each(1));
  EXPECT_THAT(Read(*grown, 1, kB), Each(0.5));
  EXPECT_EQ(grown->own_buckets()[0].reduced_gradient, store_->own_buckets()[0].reduced_gradient);
  EXPECT_EQ(grown->step_count(0), 1u);
  EXPECT_EQ(grown->step_count(1), 0u);
  EXPECT_EQ(grown->scalar_slots(1)[0], 0.25);
}

TEST_F(ShardStoreGrowthTest, GrownStoreThatNeverBegins_ChangesNothingForWhoTakesOver) {
  ASSERT_TRUE(store_->Grow(after_, memory_[1]).ok());
  EXPECT_THAT(Read(*store_, 0, kA), Each(1));
  // With the last piece it could be either generation; without it, it is the former one.
  const absl::Status both = ShardStore::Create(after_, memory_).status();
  EXPECT_TRUE(absl::IsInternal(both));
  EXPECT_THAT(std::string(both.message()), HasSubstr("was about to grow"));
  const std::unique_ptr<ShardStore> other = ShardStore::Create(before_, {memory_[0]}).value();
  EXPECT_THAT(Read(*other, 0, kA), Each(1));
}

TEST_F(ShardStoreGrowthTest, SuccessorOfAGrownStore_HasTheStateOfBothPieces) {
  std::unique_ptr<ShardStore> grown = store_->Grow(after_, memory_[1]).value();
  store_->Retire();
  grown->ledger().Begin(2, grown->ledger().progress());
  WriteAll(*grown, 2);
  grown->ledger().SetProgress({2, StepOutcome::kIdle, 4});
  grown.reset();
  store_.reset();
  const std::unique_ptr<ShardStore> other = ShardStore::Create(after_, memory_).value();
  EXPECT_THAT(Read(*other, 0, kA), Each(2));
  EXPECT_THAT(Read(*other, 1, kB), Each(2));
  EXPECT_EQ(other->step_count(0), 2u);
  EXPECT_EQ(other->step_count(1), 1u);
  EXPECT_EQ(other->ledger().progress().finished, 2u);
}

// Whoever holds the former store while the next one steps is told to try again, and never given
// values of a later step.
TEST_F(ShardStoreGrowthTest, ReaderOfARetiredStore_GetsNothing) {
  const std::unique_ptr<ShardStore> grown = store_->Grow(after_, memory_[1]).value();
  std::atomic<bool> done{false};
  std::thread reader([&] {
    std::vector<double> values(kA);
    while (!done) {
      if (!store_->TryRead(0, 0, 0, absl::MakeSpan(values))->has_value()) continue;
      for (const double value : values) ASSERT_EQ(value, 1);
    }
  });
  store_->Retire();
  grown->ledger().Begin(2, grown->ledger().progress());
  for (StepNumber step = 2; step <= 200; ++step) WriteAll(*grown, step);
  done = true;
  reader.join();
  std::vector<double> values(kA);
  EXPECT_FALSE(store_->TryRead(0, 0, 0, absl::MakeSpan(values))->has_value());
  EXPECT_FALSE(store_->TryReadStepCount(0).has_value());
}

TEST_F(ShardStoreGrowthTest, PlanThatMovesWhatIsThere_IsRefused) {
  const ShardStore::Options moved = OptionsOf({GroupOf("a", kA - 1, 0), GroupOf("b", kB, 1)});
  const absl::Status status = store_->Grow(moved, memory_[1]).status();
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 0 the 3000 elements from 0 on of parameter 0 \"a\""));
  const absl::Status none = store_->Grow(before_, memory_[1]).status();
  EXPECT_THAT(std::string(none.message()), HasSubstr("from 1 admissions to 1"));
  EXPECT_TRUE(absl::IsInternal(store_->Grow(after_, memory_[0]).status())) << "of another size";
  EXPECT_THAT(Read(*store_, 0, kA), Each(1));
}

}  // namespace
}  // namespace optshard

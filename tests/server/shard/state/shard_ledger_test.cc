#include "server/shard/state/shard_ledger.h"

#include <vector>

#include "gtest/gtest.h"
#include "server/shard/state/replacing.h"

namespace optshard {
namespace {

constexpr int kParameters = 5;
constexpr int kBuckets = 3;
constexpr int kScalarSlots = 2;

struct alignas(64) Line {
  char bytes[64];
};

std::vector<Line> Memory() {
  // Zeros, without a Line to copy: under the address sanitizer gcc 12 aligns a temporary to 32
  // bytes only.
  return std::vector<Line>((ShardLedger::Bytes(kParameters, kBuckets, kScalarSlots) + 63) / 64);
}

TEST(ShardLedger_OfZeros_HasNothing, ToGoOnFrom) {
  const std::vector<Line> memory = Memory();
  EXPECT_FALSE(ShardLedger::Read(memory.data()).has_value());
}

TEST(ShardLedger_Begun_SaysAfterWhichStep, AndOfWhichGeneration) {
  std::vector<Line> memory = Memory();
  ShardLedger ledger(memory.data(), kParameters, kBuckets, kScalarSlots);
  ledger.Begin(7, {41, StepOutcome::kIdle, 70000});
  const absl::optional<KeptState> kept = ShardLedger::Read(memory.data());
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->generation, 7u);
  EXPECT_EQ(kept->progress.finished, 41u);
  EXPECT_EQ(kept->progress.outcome, StepOutcome::kIdle);
  EXPECT_EQ(kept->progress.skipped, 70000u);
}

TEST(ShardLedger_OverTheSameMemory_GoesOn, WithCountsAndVersions) {
  std::vector<Line> memory = Memory();
  {
    ShardLedger ledger(memory.data(), kParameters, kBuckets, kScalarSlots);
    ledger.Begin(1, StepProgress());
    for (int p = 0; p < kParameters; ++p) {
      ledger.step_count(p) = 10 + p;
      for (int k = 0; k < kScalarSlots; ++k) ledger.scalar_slot(p, k) = 50 + 10 * p + k;
    }
    for (int own = 0; own < kBuckets; ++own) ledger.version(own).step = 20 + own;
    ledger.counts_version().step = 30;
    ledger.SetProgress({9, StepOutcome::kApplied});
  }
  const ShardLedger ledger(memory.data(), kParameters, kBuckets, kScalarSlots);
  EXPECT_EQ(ledger.progress().finished, 9u);
  EXPECT_EQ(ledger.progress().outcome, StepOutcome::kApplied);
  for (int p = 0; p < kParameters; ++p) {
    EXPECT_EQ(ledger.step_count(p), 10u + p);
    for (int k = 0; k < kScalarSlots; ++k) EXPECT_EQ(ledger.scalar_slot(p, k), 50 + 10 * p + k);
  }
  for (int own = 0; own < kBuckets; ++own) EXPECT_EQ(ledger.version(own).step, 20u + own);
  EXPECT_EQ(ledger.counts_version().step, 30u);
}

TEST(ShardLedger_BegunOverStateThatWasReplacedInPart, SaysOnlyWhatItIsBegunWith) {
  std::vector<Line> memory = Memory();
  ShardLedger ledger(memory.data(), kParameters, kBuckets, kScalarSlots);
  ledger.Begin(1, {9, StepOutcome::kIdle});
  ledger.SetReplacing(Replacing::kState);
  EXPECT_FALSE(ledger.has_no_step());
  ledger.Begin(2, {0, StepOutcome::kTorn}, Replacing::kNothing);
  EXPECT_EQ(ledger.replacing(), Replacing::kNothing);
  EXPECT_TRUE(ledger.has_no_step());
  ledger.Begin(3, {0, StepOutcome::kTorn}, Replacing::kState);
  EXPECT_FALSE(ledger.has_no_step());
}

}  // namespace
}  // namespace optshard

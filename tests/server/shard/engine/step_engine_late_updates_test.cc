// Steps with executors whose updates are done only when their tickets say so: until then no bucket
// is marked as of the step, none is published, and the step is not applied.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/clock.h"
#include "common/errors.h"
#include "gtest/gtest.h"
#include "server/coordinator/recovery_point.h"
#include "server/shard/engine/step_engine.h"
#include "server/shard/snapshot/snapshot_memory.h"
#include "server/shard/snapshot/state_snapshots.h"
#include "tests/server/shard/engine/engine_rig.h"
#include "tests/server/shard/engine/late_executor.h"

namespace optshard::testing {
namespace {

constexpr int kRanks = 3;
constexpr Placement kPlacements[] = {Placement::kFlatRegions, Placement::kReachable,
                                     Placement::kNodes};

// Elements of their own, and whole parameters.
EngineRig::Options OptionsFor(Placement placement, std::vector<LateUpdates>* updates) {
  EngineRig::Options options;
  options.world_size = kRanks;
  options.placements = {placement};
  options.rules = {{"adam"}, {"lamb"}};
  options.executor_of = [updates](Rank rank) { return MakeLateExecutor(&(*updates)[rank]); };
  return options;
}

// Whether all that is owned of the bucket's parameters has been written. Where a rule needs whole
// parameters, they are those that begin in it.
bool Contain(const std::vector<LateUpdates::Written>& all, const EngineRig::RankState& rank,
             const Bucket& bucket) {
  for (const BucketSpan& span : bucket.spans) {
    const Buffer at = rank.replica->tensors()[span.parameter].parameter;
    const void* const begin = at.From(span.parameter_offset_elements).data();
    if (!LateUpdates::Contain(all, begin, span.elements * SizeOf(at.dtype()))) return false;
  }
  return true;
}

// What a rank may say of step `step`, in which it has published nothing at first, while it waits.
// Of what it publishes, this sees the operations between nodes: a rank writes into the replicas of
// its own node directly.
void ExpectNothingIsSaidTooEarly(EngineRig& rig, Rank r, const LateUpdates& updates,
                                 StepNumber step, int64_t published_before) {
  const EngineRig::RankState& rank = rig.rank(r);
  EXPECT_EQ(rank.engine->finished(), step - 1);
  EXPECT_EQ(rank.store->ledger().progress().finished, step - 1);
  EXPECT_EQ(rank.store->ledger().progress().outcome, StepOutcome::kTorn);
  int64_t done_bytes = 0;
  for (size_t own = 0; own < rank.store->own_buckets().size(); ++own) {
    const Bucket& bucket = *rank.store->own_buckets()[own].bucket;
    const ShardLedger::Version& version = rank.store->ledger().version(static_cast<int>(own));
    const bool done = Contain(updates.done, rank, bucket);
    EXPECT_EQ(version.step == step, done) << "bucket " << bucket.index;
    if (done) done_bytes += bucket.bytes();
    if (Contain(updates.pending, rank, bucket)) {
      EXPECT_EQ(version.sequence % 2, 1u) << "bucket " << bucket.index << " can be read";
    }
  }
  EXPECT_LE(rig.hub().PublishedBytes(r) - published_before, done_bytes);
}

class StepEngine_UpdatesThatAreLate : public ::testing::TestWithParam<LateUpdates::RunBy> {};

TEST_P(StepEngine_UpdatesThatAreLate, NothingIsSaidBeforeTheirTicketsHaveEnded) {
  for (const Placement placement : kPlacements) {
    SCOPED_TRACE(NameOf(placement));
    std::vector<LateUpdates> updates(kRanks);
    EngineRig rig(OptionsFor(placement, &updates));
    for (StepNumber step = 1; step <= 2; ++step) {
      for (Rank r = 0; r < kRanks; ++r) {
        updates[r].run_by = GetParam();
        updates[r].done.clear();
        updates[r].before_updates = [&rig, &updates, r, step,
                                     published = rig.hub().PublishedBytes(r)] {
          ExpectNothingIsSaidTooEarly(rig, r, updates[r], step, published);
        };
      }
      rig.GiveAllGradients();
      ExpectAllOk(rig.Step());
      rig.StepOracleAlong();
      EXPECT_EQ(rig.DifferenceToOracle(), "");
      for (const LateUpdates& rank : updates) {
        EXPECT_TRUE(rank.pending.empty());
        EXPECT_FALSE(rank.done.empty());
      }
    }
  }
}

TEST_P(StepEngine_UpdatesThatAreLate, TheirErrorIsTheStepsAndTearsIt) {
  for (const Placement placement : kPlacements) {
    for (const LateUpdates::Fault fault :
         {LateUpdates::Fault::kInStart, LateUpdates::Fault::kInWait,
          LateUpdates::Fault::kAtDeadline}) {
      SCOPED_TRACE(absl::StrCat(NameOf(placement), ", fault ", static_cast<int>(fault)));
      const bool times_out = fault == LateUpdates::Fault::kAtDeadline;
      // It takes all the time that the step has.
      if (times_out && placement != Placement::kNodes) continue;
      std::vector<LateUpdates> updates(kRanks);
      for (LateUpdates& rank : updates) rank.run_by = GetParam();
      updates[1].fault = fault;
      updates[1].faulty_ticket = 1;
      updates[1].error = absl::InternalError("the device is broken");
      EngineRig::Options options = OptionsFor(placement, &updates);
      if (times_out) options.timeout = absl::Seconds(2);
      EngineRig rig(options);
      rig.GiveAllGradients();
      const absl::Time start = Clock::Monotonic().Now();
      const std::vector<StepEngine::Result> results = rig.Step();

      if (times_out) {
        EXPECT_TRUE(absl::IsDeadlineExceeded(results[1].status)) << results[1].status;
        EXPECT_GE(Clock::Monotonic().Now() - start, options.timeout);
      } else {
        EXPECT_EQ(results[1].status, updates[1].error);
      }
      EXPECT_EQ(results[1].outcome, StepOutcome::kTorn);
      std::vector<absl::optional<KeptState>> kept;
      for (Rank r = 0; r < kRanks; ++r) {
        EXPECT_FALSE(results[r].status.ok()) << "rank " << r;
        kept.push_back(KeptState{1, rig.rank(r).store->ledger().progress()});
      }
      EXPECT_TRUE(errors::IsTornStep(FindRecoveryPoint(kept).status()));
      int unreadable = 0;
      const ShardStore& store = *rig.rank(1).store;
      for (size_t own = 0; own < store.own_buckets().size(); ++own) {
        const ShardLedger::Version& version = store.ledger().version(static_cast<int>(own));
        if (version.sequence % 2 == 1) ++unreadable;
        if (Contain(updates[1].done, rig.rank(1), *store.own_buckets()[own].bucket)) continue;
        EXPECT_EQ(version.step, 0) << "bucket " << own;
      }
      EXPECT_GT(unreadable, 0);
    }
  }
}

// What a snapshot has of the rank's state, by stored part.
class SnapshotContents {
 public:
  // Opens one, which has memory for copies.
  explicit SnapshotContents(const ShardStore& store)
      : memory_(*SnapshotMemory::Create({store.snapshots().bytes()})),
        snapshot_(store.snapshots().Prepare(*memory_->Take(store.snapshots().bytes()))),
        opened_(store.TryOpen(snapshot_).has_value()) {
    for (const ShardStore::StoredPart& part : store.StoredParts()) {
      const Buffer live = part.array.plain();
      const auto* const at = static_cast<const char*>(live.data());
      parts_.push_back({part.own, part.range, at - snapshot_->At(part.own, part.range),
                        static_cast<size_t>(part.elements) * SizeOf(live.dtype())});
    }
  }

  bool opened() const { return opened_; }
  StateSnapshot::BlockState state(int block) const { return snapshot_->state(block); }
  // The bytes of each part.
  std::vector<std::string> Read() const {
    std::vector<std::string> all;
    for (const Part& part : parts_) {
      all.emplace_back(snapshot_->At(part.block, part.range) + part.offset, part.bytes);
    }
    return all;
  }

 private:
  struct Part {
    int block;
    int range;
    ptrdiff_t offset;
    size_t bytes;
  };

  std::shared_ptr<SnapshotMemory> memory_;
  std::shared_ptr<StateSnapshot> snapshot_;
  bool opened_;
  std::vector<Part> parts_;
};

TEST_P(StepEngine_UpdatesThatAreLate, SnapshotThatIsOpen_KeepsTheStateBeforeThem) {
  for (const Placement placement : kPlacements) {
    SCOPED_TRACE(NameOf(placement));
    std::vector<LateUpdates> updates(kRanks);
    for (LateUpdates& rank : updates) rank.run_by = GetParam();
    EngineRig rig(OptionsFor(placement, &updates));
    const auto step = [&rig] {
      rig.GiveAllGradients();
      ExpectAllOk(rig.Step());
      rig.StepOracleAlong();
      EXPECT_EQ(rig.DifferenceToOracle(), "");
    };
    step();
    std::vector<SnapshotContents> snapshots;
    std::vector<std::vector<std::string>> before;
    for (Rank r = 0; r < kRanks; ++r) {
      snapshots.emplace_back(*rig.rank(r).store);
      ASSERT_TRUE(snapshots.back().opened());
      before.push_back(snapshots.back().Read());
    }
    step();
    for (Rank r = 0; r < kRanks; ++r) {
      EXPECT_EQ(snapshots[r].Read(), before[r]) << "rank " << r;
      EXPECT_NE(SnapshotContents(*rig.rank(r).store).Read(), before[r]) << "rank " << r;
      const auto blocks = static_cast<int>(rig.rank(r).store->own_buckets().size());
      for (int b = 0; b < blocks; ++b) {
        EXPECT_EQ(snapshots[r].state(b), StateSnapshot::BlockState::kCopied) << "block " << b;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, StepEngine_UpdatesThatAreLate,
                         ::testing::Values(LateUpdates::RunBy::kWaiter,
                                           LateUpdates::RunBy::kAnotherThread),
                         [](const auto& info) {
                           return info.param == LateUpdates::RunBy::kWaiter ? "ByTheWaiter"
                                                                            : "ByAnotherThread";
                         });

}  // namespace
}  // namespace optshard::testing

// Saves and removals of checkpoints that are interrupted at every operation of the file system.
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/checkpoint_removal.h"
#include "server/checkpoint/verify.h"
#include "tests/server/checkpoint/crashes.h"
#include "tests/server/checkpoint/saved_model.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using testing::FakeFileSystem;
using testing::SavedModel;
using Unsynced = FakeFileSystem::Unsynced;

// More than a write takes at once, so that the files are written in several.
constexpr int64_t kBigElements = 100'000;
constexpr StepNumber kBefore = 10;
constexpr StepNumber kDuring = 20;
constexpr StepNumber kAfter = 30;

absl::Status Save(FakeFileSystem& system, StepNumber step) {
  auto root = system.OpenDirectory("/").value();
  return SavedModel(step, kBigElements).Save(*root, 2, PartitionPolicy::kBalanced).status();
}

// What a coordinator does after a save that succeeded.
absl::Status Prune(FakeFileSystem& system) {
  auto root = system.OpenDirectory("/").value();
  const auto entries = ListCheckpoints(*root);
  if (!entries.ok()) return entries.status();
  auto entry = entries->begin();
  for (const PruneDecision& decision : DecidePrune(*entries, {/*keep_last=*/1, 0})) {
    const auto removed =
        decision.remove ? RemoveCheckpoint(*root, *entry) : absl::StatusOr<Removal>(Removal::kKept);
    if (!removed.ok()) return removed.status();
    ++entry;
  }
  return absl::OkStatus();
}

// The steps of which there are checkpoints; every one of them loads with its values.
std::set<StepNumber> Listed(FakeFileSystem& system) {
  auto root = system.OpenDirectory("/").value();
  std::set<StepNumber> steps;
  const auto entries = ListCheckpoints(*root).value();
  for (const CheckpointEntry& entry : entries) {
    EXPECT_EQ(entry.problem, absl::OkStatus());
    if (entry.state != CheckpointState::kCommitted) continue;
    const auto reader = CheckpointReader::Open(root->OpenDirectory(entry.name).value());
    EXPECT_EQ(reader.status(), absl::OkStatus());
    if (!reader.ok()) continue;
    EXPECT_EQ(SavedModel(entry.parsed.step, kBigElements)
                  .Difference(**reader, 1, PartitionPolicy::kGreedy),
              "");
    steps.insert(entry.parsed.step);
  }
  return steps;
}

// Runs a case, in a new file system with one checkpoint, for each operation from now on: as long as
// it returns that the operation took place. How many those were.
template <typename Case>
int ForEachOperation(const Case& run) {
  int points = 0;
  for (int64_t operation = 0;; ++operation) {
    FakeFileSystem system;
    EXPECT_EQ(Save(system, kBefore), absl::OkStatus());
    SCOPED_TRACE(absl::StrCat("operation ", operation));
    if (!run(system, system.operations() + operation)) return points;
    ++points;
    if (::testing::Test::HasFailure()) return points;
  }
}

TEST(CheckpointCrash, AtEveryOperationOfASaveAndPrune_LosesNothingCommitted) {
  int points = 0;
  for (const testing::Crash& crash : testing::Crashes()) {
    SCOPED_TRACE(absl::StrCat("seed ", crash.seed));
    points += ForEachOperation([&](FakeFileSystem& system, int64_t operation) {
      system.CrashAtOperation(operation);
      const bool saved = Save(system, kDuring).ok();
      if (saved) Prune(system).IgnoreError();
      const bool crashed = system.crashed();
      system.Restart(crash.unsynced, crash.seed * 1000 + static_cast<uint64_t>(operation));

      const std::set<StepNumber> listed = Listed(system);
      EXPECT_TRUE(!saved || listed.count(kDuring) == 1) << "a committed checkpoint is lost";
      EXPECT_TRUE(saved || listed.count(kBefore) == 1) << "the former checkpoint is lost";
      EXPECT_FALSE(listed.empty());
      // Life goes on, and what was left behind is cleared away. First the mark of a removal that
      // had not come to the manifest.
      system.SetTime(absl::UnixEpoch() + absl::Hours(2));
      EXPECT_EQ(Save(system, kAfter), absl::OkStatus());
      EXPECT_EQ(Prune(system), absl::OkStatus());
      EXPECT_EQ(Prune(system), absl::OkStatus());
      EXPECT_EQ(system.OpenDirectory("/").value()->List().value().size(), 1u);
      EXPECT_EQ(Listed(system), std::set<StepNumber>{kAfter});
      return crashed;
    });
  }
  std::printf("%d crash points\n", points);
  EXPECT_GT(points, 100);
}

TEST(CheckpointFault, AtEveryOperationOfASave_LeavesTheFormerOneAndTellsTheTruth) {
  for (const absl::Status& error :
       {absl::ResourceExhaustedError("no space"), absl::DataLossError("input/output error")}) {
    const int points = ForEachOperation([&](FakeFileSystem& system, int64_t operation) {
      system.FailOperation(operation, error);
      const absl::Status saved = Save(system, kDuring);
      if (system.operations() <= operation) return false;
      EXPECT_TRUE(Listed(system).count(kBefore) == 1);
      // A committed checkpoint survives whatever comes next.
      system.Restart(Unsynced::kLost);
      const std::set<StepNumber> listed = Listed(system);
      EXPECT_EQ(listed.count(kBefore), 1u);
      EXPECT_TRUE(!saved.ok() || listed.count(kDuring) == 1);
      EXPECT_EQ(Save(system, kAfter), absl::OkStatus());
      return true;
    });
    EXPECT_GT(points, 20);
  }
}

TEST(CheckpointFault, FullDisk_IsSaidAndLeavesTheFormerOne) {
  FakeFileSystem measured;
  ASSERT_EQ(Save(measured, kBefore), absl::OkStatus());
  const int64_t capacity = 1 << 30;
  measured.SetCapacity(capacity);
  const int64_t one = capacity - measured.OpenDirectory("/").value()->FreeBytes().value();
  for (int64_t room = 0; room < one + 200; room += one / 60) {
    FakeFileSystem system;
    ASSERT_EQ(Save(system, kBefore), absl::OkStatus());
    system.SetCapacity(one + room);
    const absl::Status saved = Save(system, kDuring);
    // The two differ by a few digits.
    if (room < one - 60) {
      EXPECT_EQ(saved.code(), absl::StatusCode::kResourceExhausted);
    }
    EXPECT_TRUE(Listed(system).count(kBefore) == 1);
    EXPECT_EQ(Listed(system).count(kDuring), saved.ok() ? 1u : 0u);
    // Room is given back, but for what the uncommitted directory of this attempt still has.
    if (!saved.ok() && room < one / 4) {
      EXPECT_EQ(system.OpenDirectory("/").value()->FreeBytes().value(), room);
    }
  }
}

TEST(CheckpointFault, FullDisk_IsNoticedBeforeAnythingIsWritten) {
  FakeFileSystem system;
  system.SetCapacity(1000);
  const absl::Status saved = Save(system, kDuring);
  EXPECT_EQ(saved.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(saved.message()).find("bytes of free space"), std::string::npos) << saved;
}

}  // namespace
}  // namespace optshard

// Commits and removals of one checkpoint at the same time, in every order with up to two changes
// from one to the other and back.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/checkpoint_removal.h"
#include "server/checkpoint/commit.h"
#include "tests/server/checkpoint/saved_model.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using testing::FakeFileSystem;
using testing::SavedModel;

constexpr StepNumber kStep = 10;
constexpr absl::Duration kPatience = absl::Seconds(60);

// Runs `first` up to its operation `a`, then `second` up to its operation `b`, then `between`, then
// the rest of `first`, then that of `second`. Whether both had so many operations.
bool RunInTurns(FakeFileSystem& system, const std::function<void()>& first, int a,
                const std::function<void()>& second, int b,
                const std::function<void()>& between = nullptr) {
  absl::Notification second_waits;  // or has ended
  absl::Notification first_ended;
  std::atomic<std::thread::id> second_thread{std::thread::id()};
  std::thread other;
  int first_operations = 0;
  int second_operations = 0;
  bool both = false;
  system.BeforeOperations([&] {
    if (std::this_thread::get_id() == second_thread) {
      if (second_operations++ != b) return;
      both = true;
      second_waits.Notify();
      EXPECT_TRUE(first_ended.WaitForNotificationWithTimeout(kPatience)) << "for the first one";
      return;
    }
    if (first_operations++ != a) return;
    absl::Notification begins;
    other = std::thread([&] {
      EXPECT_TRUE(begins.WaitForNotificationWithTimeout(kPatience)) << "for its own beginning";
      second();
      if (!second_waits.HasBeenNotified()) second_waits.Notify();
    });
    second_thread = other.get_id();
    begins.Notify();
    EXPECT_TRUE(second_waits.WaitForNotificationWithTimeout(kPatience)) << "for the second one";
    if (between) between();
  });
  first();
  first_ended.Notify();
  const bool began = other.joinable();
  if (began) other.join();
  system.BeforeOperations(nullptr);
  if (!began) second();
  return both;
}

// A checkpoint whose parts are there, and what may be done with it.
class Race {
 public:
  Race()
      : root_(system.OpenDirectory("/").value()), made_(CreateCheckpoint(*root_, kStep).value()) {
    const PartitionPolicy policy = PartitionPolicy::kBalanced;
    CheckpointManifest description = model_.Description(2, policy);
    std::vector<OwnerPart> parts;
    for (const Rank rank : {0, 1}) {
      parts.push_back(
          WriteOwnerFile(*made_.directory, description.parameters, model_.StateOf(rank, 2, policy))
              .value());
    }
    manifest_ = MakeManifest(std::move(description), std::move(parts)).value();
    decided_ = ListCheckpoints(*root_).value()[0];
  }

  // Committers differ in the label.
  std::function<void()> Commit(absl::Status& result, const std::vector<std::string>& labels = {}) {
    return [this, &result, labels] {
      CheckpointManifest manifest = manifest_;
      manifest.labels = labels;
      result = CommitCheckpoint(*made_.directory, manifest);
    };
  }
  std::function<void()> Remove(absl::StatusOr<Removal>& result) {
    return [this, &result] { result = RemoveCheckpoint(*root_, decided_); };
  }
  std::function<void()> Commit() { return Commit(committed); }
  std::function<void()> Remove() { return Remove(removed); }

  std::vector<std::string> Labels() { return ListCheckpoints(*root_).value()[0].labels; }

  bool IsListed() {
    const auto entries = ListCheckpoints(*root_).value();
    return entries.size() == 1 && entries[0].state == CheckpointState::kCommitted;
  }
  bool IsWhole() {
    if (!IsListed()) return false;
    return CheckpointReader::Open(root_->OpenDirectory(made_.name).value()).ok();
  }

  FakeFileSystem system;
  absl::Status committed;
  absl::StatusOr<Removal> removed = Removal::kKept;

 private:
  const SavedModel model_{kStep, /*big_elements=*/100};
  std::unique_ptr<Directory> root_;
  NewCheckpoint made_;
  CheckpointManifest manifest_;
  CheckpointEntry decided_;
};

// Runs a case for all a and b for which both parties wait. How many those were.
template <typename Case>
int ForEachOrder(const Case& run) {
  int orders = 0;
  for (int a = 0;; ++a) {
    int b = 0;
    while (run(a, b)) ++b;
    if (::testing::Test::HasFailure()) return orders;
    orders += b;
    if (b == 0) return orders;
  }
}

void ExpectTruth(Race& race) {
  EXPECT_EQ(race.committed.ok(), race.IsWhole()) << race.committed;
  if (!race.committed.ok()) {
    EXPECT_EQ(race.committed.code(), absl::StatusCode::kFailedPrecondition) << race.committed;
  }
  ASSERT_EQ(race.removed.status(), absl::OkStatus());
  EXPECT_FALSE(race.committed.ok() && *race.removed == Removal::kRemoved);
}

TEST(CheckpointRace, CommitAndRemoval_InEveryOrder_NeverLoseWhatWasCommitted) {
  int succeeded = 0;
  const int orders = ForEachOrder([&](int a, int b) {
    bool both = false;
    for (const bool commit_first : {true, false}) {
      SCOPED_TRACE(absl::StrCat(commit_first ? "commit" : "removal", " first, ", a, ", ", b));
      Race race;
      both = RunInTurns(race.system, commit_first ? race.Commit() : race.Remove(), a,
                        commit_first ? race.Remove() : race.Commit(), b) ||
             both;
      ExpectTruth(race);
      succeeded += race.committed.ok() ? 1 : 0;
    }
    return both && !::testing::Test::HasFailure();
  });
  EXPECT_GT(orders, 50);
  EXPECT_GT(succeeded, 10);
}

TEST(CheckpointRace, TwoCommits_InEveryOrder_LeaveOneWhole) {
  const int orders = ForEachOrder([&](int a, int b) {
    SCOPED_TRACE(absl::StrCat(a, ", ", b));
    Race race;
    absl::Status other;
    const bool both = RunInTurns(race.system, race.Commit(), a, race.Commit(other, {"other"}), b);
    EXPECT_EQ(race.Labels(),
              race.committed.ok() ? std::vector<std::string>() : std::vector<std::string>{"other"});
    EXPECT_TRUE(race.IsWhole());
    for (const absl::Status& status : {race.committed, other}) {
      EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kAlreadyExists) << status;
    }
    EXPECT_NE(race.committed.ok(), other.ok());
    return both;
  });
  EXPECT_GT(orders, 50);
}

// The one remover ends while the other one and the committer stand still at any place.
TEST(CheckpointRace, TwoRemovalsAndACommit_InEveryOrder_NeverLoseWhatWasCommitted) {
  const int orders = ForEachOrder([&](int a, int b) {
    SCOPED_TRACE(absl::StrCat(a, ", ", b));
    Race race;
    absl::StatusOr<Removal> other = Removal::kKept;
    const bool both =
        RunInTurns(race.system, race.Remove(), a, race.Commit(), b, race.Remove(other));
    ExpectTruth(race);
    EXPECT_EQ(other.status(), absl::OkStatus());
    EXPECT_FALSE(race.committed.ok() && *other == Removal::kRemoved);
    return both && !::testing::Test::HasFailure();
  });
  EXPECT_GT(orders, 50);
}

// By a list that shows what is taken back a prune would remove all others.
TEST(CheckpointRace, ListMeanwhile_ShowsNothingThatIsTakenBack) {
  int listed = 0;
  ForEachOrder([&](int a, int b) {
    SCOPED_TRACE(absl::StrCat(a, ", ", b));
    Race race;
    bool shown = false;
    const bool both = RunInTurns(race.system, race.Remove(), a, race.Commit(), b,
                                 [&] { shown = race.IsListed(); });
    EXPECT_TRUE(!shown || race.committed.ok()) << race.committed;
    listed += shown ? 1 : 0;
    return both && !::testing::Test::HasFailure();
  });
  EXPECT_GT(listed, 1);
}

TEST(CheckpointRace, MarkOfADeadRemover_OnWhatWasCommitted_GoesAfterAnHour) {
  Race race;
  race.Commit()();
  auto root = race.system.OpenDirectory("/").value();
  auto directory = root->OpenDirectory(CheckpointNameText({kStep, 0})).value();
  ASSERT_TRUE(directory->CreateFile("removing.0").ok());
  EXPECT_FALSE(race.IsWhole());
  // It may still be at work.
  race.Remove()();
  EXPECT_EQ(race.removed.value(), Removal::kKept);
  EXPECT_FALSE(race.IsWhole());
  race.system.SetTime(absl::UnixEpoch() + absl::Minutes(61));
  race.Remove()();
  EXPECT_EQ(race.removed.value(), Removal::kKept);
  EXPECT_TRUE(race.IsWhole());
}

}  // namespace
}  // namespace optshard

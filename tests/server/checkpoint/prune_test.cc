// The names of checkpoints, and which of them stay.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_list.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;

TEST(CheckpointNames, AreReadBack) {
  EXPECT_EQ(CheckpointNameText({7, 0}), "step-000000000007");
  EXPECT_EQ(CheckpointNameText({1'234'567'890'123, 2}), "step-1234567890123.2");
  for (const std::string text : {"step-000000000007", "step-1234567890123.2"}) {
    ASSERT_TRUE(ParseCheckpointName(text).has_value());
    EXPECT_EQ(CheckpointNameText(*ParseCheckpointName(text)), text);
  }
  for (const std::string text :
       {"", "step-", "step-7", "step-000000000007.0", "step-000000000007.", "step-000000000007.-1",
        "step-00000000000x", "step-000000000007.2147483647", "Step-000000000007",
        "step-000000000007.1x", "step-+00000000007"}) {
    EXPECT_FALSE(ParseCheckpointName(text).has_value()) << text;
  }
}

CheckpointEntry Entry(StepNumber step, CheckpointState state = CheckpointState::kCommitted,
                      std::vector<std::string> labels = {}) {
  CheckpointEntry entry;
  entry.parsed = {step, 0};
  entry.name = CheckpointNameText(entry.parsed);
  entry.state = state;
  entry.labels = std::move(labels);
  return entry;
}

std::vector<StepNumber> Removed(const std::vector<CheckpointEntry>& entries,
                                const PrunePolicy& policy) {
  std::vector<StepNumber> steps;
  const auto decisions = DecidePrune(entries, policy);
  EXPECT_EQ(decisions.size(), entries.size());
  for (size_t i = 0; i < decisions.size(); ++i) {
    EXPECT_EQ(decisions[i].name, entries[i].name);
    EXPECT_FALSE(decisions[i].reason.empty());
    if (decisions[i].remove) steps.push_back(entries[i].parsed.step);
  }
  return steps;
}

TEST(DecidePrune, KeepsWhatThePolicySays) {
  const std::vector<CheckpointEntry> entries = {
      Entry(60), Entry(50), Entry(40), Entry(30, CheckpointState::kCommitted, {"best"}),
      Entry(20), Entry(10)};
  EXPECT_THAT(Removed(entries, {}), ElementsAre());
  EXPECT_THAT(Removed(entries, {1, 0}), ElementsAre(50, 40, 20, 10));
  EXPECT_THAT(Removed(entries, {2, 0}), ElementsAre(40, 20, 10));
  EXPECT_THAT(Removed(entries, {2, 20}), ElementsAre(10));
  EXPECT_THAT(Removed(entries, {9, 0}), ElementsAre());
  EXPECT_EQ(DecidePrune(entries, {1, 0})[3].reason, "label \"best\"");
}

TEST(DecidePrune, WhatIsNotCommitted_GoesOnceAnotherWasSavedAnHourLater) {
  CheckpointEntry committed = Entry(20);
  committed.saved_at = absl::FromUnixSeconds(1'000'000);
  const auto changed = [&](StepNumber step, absl::Duration before) {
    CheckpointEntry entry = Entry(step, CheckpointState::kUncommitted);
    entry.modified_at = committed.saved_at - before;
    return entry;
  };
  // A lower step alone says nothing: the job may have gone back to an earlier checkpoint.
  EXPECT_THAT(Removed({committed, changed(30, absl::Minutes(61)), changed(25, absl::Minutes(59)),
                       changed(10, absl::Minutes(59)), changed(5, absl::Minutes(61))},
                      {1, 0}),
              ElementsAre(30, 5));
  EXPECT_THAT(Removed({changed(30, absl::Hours(9)), changed(10, absl::Hours(9))}, {1, 0}),
              ElementsAre());
}

TEST(DecidePrune, WhatIsDamagedOrCannotBeRead_Stays) {
  EXPECT_THAT(Removed({Entry(20), Entry(10, CheckpointState::kDamaged),
                       Entry(5, CheckpointState::kUnreadable)},
                      {1, 0}),
              ElementsAre());
}

TEST(DecidePrune, CountsForEachJobAndOptimizer) {
  const auto of = [](StepNumber step, const char* job, const char* optimizer) {
    CheckpointEntry entry = Entry(step);
    entry.job = job;
    entry.optimizer = optimizer;
    return entry;
  };
  EXPECT_THAT(Removed({of(90, "a", "x"), of(80, "a", "x"), of(7, "a", "y"), of(6, "b", "x"),
                       of(5, "b", "x"), of(4, "a", "y")},
                      {1, 0}),
              ElementsAre(80, 5, 4));
}

}  // namespace
}  // namespace optshard

#include "common/step_transition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;

using Owner = absl::optional<OwnerSteps>;
using Owners = std::vector<Owner>;

// All that an owner can have of the first steps.
std::vector<Owner> EveryOwner() {
  std::vector<Owner> all = {absl::nullopt};
  for (const StepNumber finished : {0, 1, 2}) {
    for (const OwnerPhase phase : {OwnerPhase::kFinished, OwnerPhase::kPrepared,
                                   OwnerPhase::kApplying, OwnerPhase::kApplied}) {
      all.push_back(OwnerSteps{finished, phase, finished});
    }
  }
  all.push_back(OwnerSteps{0, OwnerPhase::kUnknown, 0});
  return all;
}

// Calls `check` with all combinations of so many owners.
template <typename Check>
void ForEveryCase(int owners, const Check& check, const Owners& chosen = {}) {
  if (static_cast<int>(chosen.size()) == owners) return check(chosen);
  for (const Owner& owner : EveryOwner()) {
    Owners more = chosen;
    more.push_back(owner);
    ForEveryCase(owners, check, more);
  }
}

std::string Text(const Owners& owners) {
  std::string text;
  for (const Owner& owner : owners) {
    absl::StrAppend(&text,
                    owner.has_value()
                        ? absl::StrCat(owner->finished, "/", static_cast<int>(owner->phase))
                        : "none",
                    " ");
  }
  return text;
}

// The table, row by row, from which steps' values there are in the owners' memories: {} of one that
// brings none, two of one that was applying a step. Those that are not known are left out.
StepDecision ByTheTable(const Owners& owners) {
  std::vector<std::set<StepNumber>> values;
  std::vector<Rank> ranks;
  std::vector<Rank> unknown;
  std::vector<Rank> prepared;
  for (size_t r = 0; r < owners.size(); ++r) {
    const Owner& owner = owners[r];
    if (owner.has_value() && owner->phase == OwnerPhase::kUnknown) {
      unknown.push_back(static_cast<Rank>(r));
      continue;
    }
    ranks.push_back(static_cast<Rank>(r));
    if (owner.has_value() && owner->phase == OwnerPhase::kPrepared) {
      prepared.push_back(ranks.back());
    }
    std::set<StepNumber> steps;
    if (owner.has_value() && owner->phase != OwnerPhase::kApplied) steps.insert(owner->finished);
    if (owner.has_value() && owner->phase >= OwnerPhase::kApplying) {
      steps.insert(owner->finished + 1);
    }
    values.push_back(std::move(steps));
  }
  StepNumber newest = 0;
  StepNumber newest_mixed = 0;
  std::vector<Rank> none;
  std::vector<Rank> mixed;
  for (size_t r = 0; r < values.size(); ++r) {
    const Rank rank = ranks[r];
    if (values[r].empty()) none.push_back(rank);
    if (values[r].size() == 2) mixed.push_back(rank);
    if (values[r].size() == 2) newest_mixed = std::max(newest_mixed, *values[r].rbegin());
    if (values[r].size() == 1) newest = std::max(newest, *values[r].begin());
  }
  StepDecision decision;
  if (none.size() == values.size()) {
    if (!unknown.empty()) decision.transition = StepTransition::kNotKnown;
    decision.ranks = unknown;
    return decision;
  }
  if (!none.empty()) {
    decision.transition = StepTransition::kStateMissing;
    decision.ranks = none;
    const auto first = std::find_if(values.begin(), values.end(),
                                    [](const auto& steps) { return !steps.empty(); });
    decision.step = *first->begin();
    return decision;
  }
  if (!mixed.empty()) {
    decision.transition = StepTransition::kInterrupted;
    decision.ranks = mixed;
    decision.step = newest_mixed;
    return decision;
  }
  decision.step = newest;
  for (size_t r = values.size(); r-- > 0;) {
    const Rank rank = ranks[r];
    if (*values[r].begin() == newest) {
      decision.ahead = rank;
    } else {
      decision.ranks.insert(decision.ranks.begin(), rank);
    }
  }
  if (!decision.ranks.empty()) {
    decision.transition = StepTransition::kBehind;
    return decision;
  }
  decision.ahead = -1;
  if (!unknown.empty()) {
    decision.transition = prepared.empty() ? StepTransition::kNotKnown : StepTransition::kInDoubt;
    decision.ranks = prepared.empty() ? unknown : prepared;
    decision.step = prepared.empty() ? newest : newest + 1;
    return decision;
  }
  decision.transition = StepTransition::kGoOn;
  for (const Owner& owner : owners) decision.skipped = std::max(decision.skipped, owner->skipped);
  return decision;
}

TEST(DecideTransition_EveryCaseOfUpToThreeOwners, IsAsTheTableSays) {
  std::set<StepTransition> seen;
  for (const int count : {0, 1, 2, 3}) {
    ForEveryCase(count, [&](const Owners& owners) {
      const StepDecision expected = ByTheTable(owners);
      const StepDecision actual = DecideTransition(owners);
      ASSERT_EQ(NameOf(actual.transition), NameOf(expected.transition)) << Text(owners);
      ASSERT_EQ(actual.step, expected.step) << Text(owners);
      ASSERT_EQ(actual.skipped, expected.skipped) << Text(owners);
      ASSERT_EQ(actual.ranks, expected.ranks) << Text(owners);
      ASSERT_EQ(actual.ahead, expected.ahead) << Text(owners);
      seen.insert(actual.transition);
    });
  }
  EXPECT_EQ(seen.size(), 7u) << "every row of the table";
}

TEST(DecideTransition_InEveryOrderOfTheOwners, IsTheSame) {
  ForEveryCase(3, [](const Owners& owners) {
    const StepDecision decision = DecideTransition(owners);
    const StepDecision turned = DecideTransition(Owners{owners[2], owners[0], owners[1]});
    ASSERT_EQ(decision.transition, turned.transition) << Text(owners);
    ASSERT_EQ(decision.ranks.size(), turned.ranks.size()) << Text(owners);
    // Which owner with state is the first one depends on the order.
    if (decision.transition == StepTransition::kStateMissing) return;
    ASSERT_EQ(decision.step, turned.step) << Text(owners);
    ASSERT_EQ(decision.skipped, turned.skipped) << Text(owners);
  });
}

TEST(DecideTransition_WhatWasPreparedAlone, IsDiscarded) {
  const StepDecision decision = DecideTransition(
      Owners{OwnerSteps{4, OwnerPhase::kPrepared, 1}, OwnerSteps{3, OwnerPhase::kApplied, 0}});
  EXPECT_EQ(decision.transition, StepTransition::kGoOn);
  EXPECT_EQ(decision.step, 4u);
  EXPECT_EQ(decision.skipped, 1u);
}

TEST(DecideTransition_OwnersAtThreeSteps_NamesAllThatAreBehind, AndWhoIsAhead) {
  const StepDecision decision =
      DecideTransition(Owners{OwnerSteps{5}, OwnerSteps{7}, OwnerSteps{6}, OwnerSteps{7}});
  EXPECT_EQ(decision.transition, StepTransition::kBehind);
  EXPECT_EQ(decision.step, 7u);
  EXPECT_THAT(decision.ranks, ElementsAre(0, 2));
  EXPECT_EQ(decision.ahead, 1);
}

}  // namespace
}  // namespace optshard

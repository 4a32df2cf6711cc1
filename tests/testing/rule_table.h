// Every registered rule with every set of slots that its options choose, as the param groups of a
// few jobs: with parameters of every type, with every form of state, and with sparse gradients for
// the rules that take them.
#ifndef OPTSHARD_TESTS_TESTING_RULE_TABLE_H_
#define OPTSHARD_TESTS_TESTING_RULE_TABLE_H_

#include <string>
#include <vector>

#include "common/state_options.h"
#include "server/update/update_rule.h"
#include "tests/testing/recorded_job.h"

namespace optshard::testing {

// Which rules a job has.
enum class RuleKind : uint8_t { kElementWise, kWholeParameters };

// The rule with each set of slots.
std::vector<RuleOptions> SlotChoices(const UpdateRule& rule);

// Whether a process that has LibTorch can use the rule. Not Muon under a sanitizer, where its
// oneDNN cannot be kept apart from LibTorch's.
bool GoesBesideLibTorch(const UpdateRule& rule);

// The forms of state, of which an optimizer has one: masters, types of slots, and mixtures; and of
// the gradients that lead there.
struct NamedState {
  std::string name;  // "InFloat32"
  StateOptions options;
  bool main_gradients = false;
};
const std::vector<NamedState>& TableStates();

// Rules that do not go with the form of state, or not beside LibTorch, are left out; without groups
// if that is all of them.
RecordedJob TableJob(RuleKind kind, const NamedState& state);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_RULE_TABLE_H_

#include "server/update/gradient_support.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/group_rule.h"
#include "common/row_marks.h"

namespace optshard {
namespace {

std::string RulesThatTakeSparse() {
  std::vector<std::string> names;
  for (const UpdateRule* rule : RuleRegistry::All()) {
    if (rule->spec().sparse_gradients != SparseGradients::kNo) names.push_back(rule->spec().name);
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

}  // namespace

absl::Status CheckTakesGradient(const UpdateRule& rule, const Hyperparameters& group,
                                StateFormat state, bool sparse) {
  const RuleSpec& spec = rule.spec();
  if (!sparse) {
    if (spec.sparse_gradients != SparseGradients::kOnly) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "the gradient is dense, and rule \"%s\" takes sparse ones only (an Embedding with "
        "sparse=True gives them); put the parameter into a group of its own with another rule, "
        "such as \"adam\"",
        spec.name));
  }
  if (spec.sparse_gradients == SparseGradients::kNo) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the gradient is sparse, and rule \"%s\" takes dense ones only; rules that take sparse "
        "ones: %s. Or make it dense with to_dense() (an Embedding with sparse=True gives sparse "
        "ones, so leave that off)",
        spec.name, RulesThatTakeSparse()));
  }
  if (IsCoded(state) && !rule.ChangesOtherRows(group) && !rule.Slots(group).empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the gradient is sparse, and rule \"%s\" has slots, of which a row cannot be updated alone "
        "in 8 bits; state_dtype is \"%s\", choose \"float32\" or \"bfloat16\"",
        spec.name, NameOf(state)));
  }
  return rule.ValidateSparse(group);
}

std::vector<int64_t> RowsThatMayBeSparse(const OptimizerSpec& spec) {
  std::vector<bool> takes_sparse;  // by group
  for (const GroupRule& group : spec.rules) {
    const absl::StatusOr<const UpdateRule*> rule = RuleRegistry::Find(group.name);
    takes_sparse.push_back(rule.ok() && (*rule)->spec().sparse_gradients != SparseGradients::kNo);
  }
  if (std::find(takes_sparse.begin(), takes_sparse.end(), true) == takes_sparse.end()) return {};
  std::vector<int64_t> rows;
  for (int p = 0; p < spec.space.parameter_count(); ++p) {
    rows.push_back(takes_sparse[spec.space.group_of(p)] ? RowsOf(spec.space.parameter(p)) : 0);
  }
  return rows;
}

}  // namespace optshard

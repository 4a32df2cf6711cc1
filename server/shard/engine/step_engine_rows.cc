// What sparse gradients add to a step.
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "common/row_marks.h"
#include "server/shard/engine/row_mark_gather.h"
#include "server/shard/engine/step_engine.h"
#include "server/update/gradient_support.h"

namespace optshard {

absl::Status StepEngine::CheckGradients(absl::Span<const ReplicaTensor> replica) const {
  for (int p = 0; p < options_.space().parameter_count(); ++p) {
    if (!replica[p].gradient) continue;
    const bool sparse = replica[p].gradient_rows.marks != nullptr;
    const ParameterSpec& parameter = options_.space().parameter(p);
    if (!sparse && (takes_dense_[p] || parameter.elements() == 0)) continue;
    const int group = options_.space().group_of(p);
    const UpdateRule& rule = *(*options_.groups)[group].rule;
    const Hyperparameters& hyperparameters = record_.hyperparameters[group];
    absl::Status taken = CheckTakesGradient(rule, hyperparameters, options_.state().format, sparse);
    if (taken.ok() && sparse && RowsOf(parameter) == 0) {
      taken = absl::InvalidArgumentError(
          "the gradient is sparse, and the parameter has no rows: expected two dimensions or more, "
          "and elements");
    }
    if (taken.ok() && sparse && rule.ChangesOtherRows(hyperparameters)) {
      taken = absl::InvalidArgumentError(
          absl::StrFormat("the gradient is sparse, and rule \"%s\" updates all rows: make it dense",
                          rule.spec().name));
    }
    if (!taken.ok()) {
      return errors::WithContext(taken, absl::StrFormat("parameter %d \"%s\"", p, parameter.name));
    }
  }
  return absl::OkStatus();
}

absl::Status StepEngine::GatherRows(const ReplicaMemory& replica, absl::Time deadline) {
  // Without a step there is nothing to reduce (Agree).
  if (!rows_.watches_any() || options_.store->ledger().has_no_step()) return absl::OkStatus();
  std::vector<uint64_t> own = rows_.MarksOf(replica.tensors());
  if (options_.world_size() == 1) {
    rows_.Take(std::move(own));
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<uint64_t>> all = GatherRowMarks(
      *options_.plane, TagOf(options_, record_.step, StepPhase::kControl, 0), own, deadline);
  if (!all.ok()) return all.status();
  rows_.Take(*std::move(all));
  return absl::OkStatus();
}

}  // namespace optshard

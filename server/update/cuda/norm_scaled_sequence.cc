#include "server/update/cuda/norm_scaled_sequence.h"

#include <map>
#include <utility>
#include <vector>

#include "common/buffer.h"
#include "server/update/cuda/workspace_layout.h"

namespace optshard {
namespace {

void AddSquaresOf(const UpdateTask& task, Buffer direction, SquaresTable& to) {
  to.AddParameter(task.span);
  to.Add({direction, task.span.elements});
}

}  // namespace

int64_t NormScaledSequence::BytesOf(const UpdateTask& task) const {
  WorkspaceLayout layout(nullptr);
  const Buffer direction = layout.Take(task.coefficients->arithmetic, task.span.elements);
  SquaresTable squares;
  AddSquaresOf(task, direction, squares);
  layout.Take(static_cast<int64_t>(squares.bytes_of_sums()));
  return layout.bytes();
}

absl::StatusOr<LaunchSequence> NormScaledSequence::SequenceOf(absl::Span<const UpdateTask> tasks,
                                                              void* workspace) const {
  LaunchSequence sequence;
  WorkspaceLayout layout(workspace);
  std::map<const Coefficients*, const Coefficients*> with_direction;
  std::map<const Coefficients*, StepSize> sizes;
  SquaresTable squares;
  std::vector<UpdateTask> first;
  std::vector<UpdateTask> second;
  for (const UpdateTask& task : tasks) {
    if (task.span.elements == 0) continue;
    const Coefficients& given = *task.coefficients;
    const Buffer direction = layout.Take(given.arithmetic, task.span.elements);

    const auto [known, is_new] = with_direction.try_emplace(&given, nullptr);
    if (is_new) {
      Coefficients& more = sequence.NewCoefficients(given);
      more.slots |= SlotSet{1} << rule_.direction_slot;
      known->second = &more;
    }
    UpdateTask writes = task;
    writes.coefficients = known->second;
    writes.span.slots[rule_.direction_slot] = direction;
    writes.span.keeps_parameter = true;

    // A set for each task, since each has a step size of its own.
    Coefficients of_step;
    of_step.arithmetic = given.arithmetic;
    UpdateTask steps = task;
    steps.coefficients = &sequence.NewCoefficients(of_step);
    steps.span.gradient = direction;
    steps.span.slots = {};
    StepSize size;
    size.of = StepSize::Of::kNormRatio;
    size.task = static_cast<int64_t>(first.size());
    size.numbers[0] = given.values[rule_.lr];
    size.numbers[1] = given.values[rule_.is_scaled];
    sizes[steps.coefficients] = size;

    AddSquaresOf(task, direction, squares);
    first.push_back(writes);
    second.push_back(steps);
  }
  void* const sums = layout.Take(static_cast<int64_t>(squares.bytes_of_sums()));
  absl::Status added = sequence.AddFormula(rule_.direction, first);
  if (added.ok()) {
    sequence.AddSquares(squares, sums, /*of_spans=*/true);
    added =
        sequence.AddSteps(rule_.step, second, rule_.minus_step_size, sizes, squares.SpansIn(sums));
  }
  if (!added.ok()) return added;
  return sequence;
}

}  // namespace optshard

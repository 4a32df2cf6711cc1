#include "server/update/cuda/factored_sequence.h"

#include <map>
#include <utility>
#include <vector>

#include "common/buffer.h"
#include "common/dtype.h"
#include "server/update/cuda/workspace_layout.h"
#include "server/update/matrices.h"

namespace optshard {
namespace {

// After so many elements the CPU begins another block of squares.
int64_t PeriodOf(const SpanUpdate& span) {
  if (!HasMatrices(span.shape)) return span.elements;
  const Matrices matrices(span.shape);
  return matrices.at_a_time * matrices.rows * matrices.columns;
}

void AddSquaresOf(const SpanUpdate& span, Buffer update, SquaresTable& to) {
  const int64_t period = PeriodOf(span);
  to.AddParameter(span, period);
  to.Add({update, span.elements, period});
}

void AddRowsOf(const SpanUpdate& span, Buffer update, SquaresTable& to) {
  to.Add({update, span.elements, Matrices(span.shape).columns});
}

// What a matrix's update computes with, beside itself.
struct Averages {
  Averages(const SpanUpdate& span, DType arithmetic, WorkspaceLayout& layout) {
    const Matrices matrices(span.shape);
    rows = matrices.count * matrices.rows;
    columns = matrices.count * matrices.columns;
    estimates = layout.Take(arithmetic, span.elements);
    row_means = layout.Take(arithmetic, rows);
    column_means = layout.Take(arithmetic, columns);
    of_rows = layout.Take(arithmetic, rows);
    of_columns = layout.Take(arithmetic, columns);
  }

  int64_t rows;
  int64_t columns;
  Buffer estimates;
  Buffer row_means;
  Buffer column_means;
  Buffer of_rows;
  Buffer of_columns;
};

// A formula's span from one array into another.
SpanUpdate From(ConstBuffer from, Buffer into, int64_t elements) {
  SpanUpdate span;
  span.gradient = from;
  span.parameter = into;
  span.elements = elements;
  return span;
}

}  // namespace

int64_t FactoredSequence::BytesOf(const UpdateTask& task) const {
  const SpanUpdate& span = task.span;
  WorkspaceLayout layout(nullptr);
  const Buffer update = layout.Take(task.coefficients->arithmetic, span.elements);
  SquaresTable rows;
  if (HasMatrices(span.shape)) {
    const Averages averages(span, task.coefficients->arithmetic, layout);
    AddRowsOf(span, update, rows);
  }
  SquaresTable squares;
  AddSquaresOf(span, update, squares);
  layout.Take(static_cast<int64_t>(rows.bytes_of_blocks()));
  layout.Take(static_cast<int64_t>(squares.bytes_of_sums()));
  return layout.bytes();
}

// Collects what each formula goes over, and then the sequence.
class FactoredSequence::Builder {
 public:
  Builder(const FactoredRule& rule, void* workspace) : rule_(rule), layout_(workspace) {}

  void Add(const UpdateTask& task) {
    const SpanUpdate& span = task.span;
    const Coefficients& given = *task.coefficients;
    const Buffer update = layout_.Take(given.arithmetic, span.elements);
    if (HasMatrices(span.shape)) {
      AddMatrices(task, update);
    } else {
      SpanUpdate into = From(span.gradient, update, span.elements);
      into.slots[0] = span.slots[rule_.vector_slot];
      vectors_.push_back({WithSlots(given, 1), into});
    }
    AddSquaresOf(span, update, squares_);

    UpdateTask steps = task;
    // A set for each task, since each has a step size of its own.
    steps.coefficients = &NewCoefficients(given, 0);
    steps.span.gradient = update;
    steps.span.slots = {};
    StepSize size;
    size.of = StepSize::Of::kRelativeStep;
    size.task = static_cast<int64_t>(steps_.size());
    size.numbers[0] = given.values[rule_.rho];
    size.numbers[1] = given.values[rule_.second_eps];
    size.numbers[2] = given.values[rule_.clip];
    size.numbers[3] = static_cast<double>(span.elements);
    sizes_[steps.coefficients] = size;
    steps_.push_back(steps);
  }

  absl::StatusOr<LaunchSequence> Finish() && {
    void* const of_rows = layout_.Take(static_cast<int64_t>(rows_.bytes_of_blocks()));
    void* const sums = layout_.Take(static_cast<int64_t>(squares_.bytes_of_sums()));
    MatricesTable tables[] = {MatricesTable(/*is_double=*/false),
                              MatricesTable(/*is_double=*/true)};
    for (const Placed& placed : matrices_) {
      MatricesSpan span = placed.span;
      span.of_row_blocks = static_cast<const SumOfSquaresOnDevice*>(of_rows) + placed.blocks_before;
      tables[placed.is_double ? 1 : 0].Add(span);
    }
    const auto add = [&](MatricesPhase phase) {
      for (const MatricesTable& table : tables) sequence_.AddMatrices(phase, table);
    };
    absl::Status added = sequence_.AddFormula(rule_.vector, vectors_);
    if (added.ok()) added = sequence_.AddFormula(rule_.gradient, gradients_);
    sequence_.AddSquares(rows_, of_rows, /*of_spans=*/false);
    add(MatricesPhase::kMeans);
    if (added.ok()) added = sequence_.AddFormula(rule_.average, averages_);
    add(MatricesPhase::kDivide);
    add(MatricesPhase::kEstimates);
    if (added.ok()) added = sequence_.AddFormula(rule_.matrix, divisions_);
    sequence_.AddSquares(squares_, sums, /*of_spans=*/true);
    if (added.ok()) {
      added = sequence_.AddSteps(rule_.step, steps_, rule_.minus_step_size, sizes_,
                                 squares_.SpansIn(sums));
    }
    if (!added.ok()) return added;
    return std::move(sequence_);
  }

 private:
  struct Placed {
    MatricesSpan span;  // but for of_row_blocks
    int64_t blocks_before = 0;
    bool is_double = false;
  };

  Coefficients& NewCoefficients(const Coefficients& given, SlotSet slots) {
    Coefficients& made = sequence_.NewCoefficients(given);
    made.slots = slots;
    return made;
  }
  const Coefficients* WithSlots(const Coefficients& given, SlotSet slots) {
    const auto [known, is_new] = known_.try_emplace({&given, slots}, nullptr);
    if (is_new) known->second = &NewCoefficients(given, slots);
    return known->second;
  }

  void AddMatrices(const UpdateTask& task, Buffer update) {
    const SpanUpdate& span = task.span;
    const Coefficients& given = *task.coefficients;
    const Averages averages(span, given.arithmetic, layout_);
    const auto average = [&](Buffer means, Buffer into, int64_t elements, int slot) {
      SpanUpdate of = From(means, into, elements);
      of.slots[0] = span.slots[slot];
      averages_.push_back({WithSlots(given, 1), of});
    };
    gradients_.push_back({WithSlots(given, 0), From(span.gradient, update, span.elements)});
    average(averages.row_means, averages.of_rows, averages.rows, rule_.row_slot);
    average(averages.column_means, averages.of_columns, averages.columns, rule_.column_slot);
    divisions_.push_back({WithSlots(given, 0), From(averages.estimates, update, span.elements)});

    const Matrices matrices(span.shape);
    Placed placed;
    placed.is_double = given.arithmetic == DType::kFloat64;
    placed.blocks_before =
        static_cast<int64_t>(rows_.bytes_of_blocks() / sizeof(SumOfSquaresOnDevice));
    placed.span.elements = update.data();
    placed.span.row_means = averages.row_means.data();
    placed.span.column_means = averages.column_means.data();
    placed.span.row_averages = averages.of_rows.data();
    placed.span.column_averages = averages.of_columns.data();
    placed.span.estimates = averages.estimates.data();
    placed.span.count = matrices.count;
    placed.span.rows = matrices.rows;
    placed.span.columns = matrices.columns;
    placed.span.least_mean = given.values[rule_.first_eps];
    matrices_.push_back(placed);
    AddRowsOf(span, update, rows_);
  }

  const FactoredRule& rule_;
  WorkspaceLayout layout_;
  LaunchSequence sequence_;
  std::map<std::pair<const Coefficients*, SlotSet>, const Coefficients*> known_;
  std::map<const Coefficients*, StepSize> sizes_;
  SquaresTable rows_;
  SquaresTable squares_;
  std::vector<Placed> matrices_;
  std::vector<UpdateTask> vectors_;
  std::vector<UpdateTask> gradients_;
  std::vector<UpdateTask> averages_;
  std::vector<UpdateTask> divisions_;
  std::vector<UpdateTask> steps_;
};

absl::StatusOr<LaunchSequence> FactoredSequence::SequenceOf(absl::Span<const UpdateTask> tasks,
                                                            void* workspace) const {
  Builder builder(rule_, workspace);
  for (const UpdateTask& task : tasks) {
    if (task.span.elements > 0) builder.Add(task);
  }
  return std::move(builder).Finish();
}

}  // namespace optshard

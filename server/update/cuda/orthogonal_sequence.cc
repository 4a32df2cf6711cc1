#include "server/update/cuda/orthogonal_sequence.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "common/buffer.h"
#include "common/dtype.h"
#include "server/update/cuda/workspace_layout.h"
#include "server/update/norm_ratio.h"

namespace optshard {
namespace {

constexpr int64_t kHalfBytes = 2;  // of a bfloat16

// Of the names that NewtonSchulz has for them.
struct Iteration {
  float a = 0;
  float b = 0;
  float c = 0;
  int steps = 0;
};

// Matrices that lie one behind the other, and are multiplied at once.
class MatrixStack {
 public:
  MatrixStack(const SpanUpdate& span, DType arithmetic)
      : rows_(span.shape[0]), columns_(span.shape[1]), arithmetic_(arithmetic) {}

  // Of `count` matrices.
  void LayOut(int64_t count, WorkspaceLayout& layout) {
    directions_ = TakeEach(count, elements() * static_cast<int64_t>(SizeOf(arithmetic_)), layout);
    x_ = Halves(count, elements(), layout);
    // The directions are over by then, but for where the result of float64 goes.
    next_ = is_double() ? Halves(count, elements(), layout)
                        : DeviceMatrices{directions_.data, directions_.bytes / kHalfBytes};
    gram_ = Halves(count, shorter() * shorter(), layout);
    update_ = Halves(count, shorter() * shorter(), layout);
  }

  int64_t elements() const { return rows_ * columns_; }
  bool is_double() const { return arithmetic_ == DType::kFloat64; }

  Buffer direction(size_t index) const { return {At(directions_, index), arithmetic_}; }
  // What is multiplied: of the directions at first.
  Buffer x(size_t index) const {
    return {At({x_.data, x_.stride * kHalfBytes}, index), DType::kBFloat16};
  }

  // x becomes a x + (b g + c g g) x, where g = x xT; or, of more rows than columns,
  // a x + x (b g + c g g), where g = xT x.
  void Iterate(const Iteration& by, int64_t count, LaunchSequence& sequence) {
    const bool is_tall = rows_ > columns_;
    DeviceProduct gram = SquareProduct(count, std::max(rows_, columns_));
    gram.shape.a_transposed = is_tall;
    gram.shape.b_transposed = !is_tall;
    gram.a = gram.b = x_;
    gram.d = gram_;
    sequence.AddProduct(gram);

    DeviceProduct update = SquareProduct(count, shorter());
    update.shape.b_transposed = true;  // it is symmetric
    update.a = update.b = update.c = gram_;
    update.d = update_;
    update.scale = by.c;
    update.keep = by.b;
    sequence.AddProduct(update);

    DeviceProduct step;
    step.shape.rows = rows_;
    step.shape.columns = columns_;
    step.shape.inner = shorter();
    step.shape.count = count;
    step.a = is_tall ? x_ : update_;
    step.b = is_tall ? update_ : x_;
    step.shape.b_transposed = is_tall;  // of update, which is symmetric: the CPU's operand
    step.c = x_;
    step.d = next_;
    step.keep = by.a;
    sequence.AddProduct(step);
    std::swap(x_, next_);
  }

 private:
  struct Arrays {
    void* data = nullptr;
    int64_t bytes = 0;  // from one to the next
  };

  static void* At(const Arrays& arrays, size_t index) {
    return static_cast<char*>(arrays.data) + static_cast<int64_t>(index) * arrays.bytes;
  }

  static Arrays TakeEach(int64_t count, int64_t bytes, WorkspaceLayout& layout) {
    Arrays arrays;
    arrays.bytes = WorkspaceLayout::Aligned(bytes);
    arrays.data = layout.Take(count * arrays.bytes);
    return arrays;
  }
  static DeviceMatrices Halves(int64_t count, int64_t elements, WorkspaceLayout& layout) {
    const Arrays arrays = TakeEach(count, elements * kHalfBytes, layout);
    return {arrays.data, arrays.bytes / kHalfBytes};
  }

  int64_t shorter() const { return std::min(rows_, columns_); }

  DeviceProduct SquareProduct(int64_t count, int64_t inner) const {
    DeviceProduct product;
    product.shape.rows = product.shape.columns = shorter();
    product.shape.inner = inner;
    product.shape.count = count;
    return product;
  }

  int64_t rows_;
  int64_t columns_;
  DType arithmetic_;
  Arrays directions_;
  DeviceMatrices x_;
  DeviceMatrices next_;
  DeviceMatrices gram_;
  DeviceMatrices update_;
};

}  // namespace

int64_t OrthogonalSequence::BytesOf(const UpdateTask& task) const {
  WorkspaceLayout layout(nullptr);
  MatrixStack stack(task.span, task.coefficients->arithmetic);
  stack.LayOut(1, layout);
  SquaresTable squares;
  squares.Add({stack.direction(0), task.span.elements});
  layout.Take(static_cast<int64_t>(squares.bytes_of_sums()));
  return layout.bytes();
}

// Collects what is multiplied at once, and then the sequence.
class OrthogonalSequence::Builder {
 public:
  Builder(const OrthogonalRule& rule, void* workspace) : rule_(rule), layout_(workspace) {}

  void Add(const UpdateTask& task) {
    const std::array<double, kMaxCoefficients>& values = task.coefficients->values;
    Iteration iteration;
    iteration.a = static_cast<float>(values[rule_.a]);
    iteration.b = static_cast<float>(values[rule_.b]);
    iteration.c = static_cast<float>(values[rule_.c]);
    iteration.steps = static_cast<int>(values[rule_.steps]);
    const Key key = {task.span.shape[0], task.span.shape[1], task.coefficients->arithmetic,
                     iteration.a,        iteration.b,        iteration.c,
                     iteration.steps};
    const auto [known, is_new] = stacks_.try_emplace(
        key, Together{MatrixStack(task.span, task.coefficients->arithmetic), iteration, {}});
    known->second.tasks.push_back(&task);
  }

  absl::StatusOr<LaunchSequence> Finish() && {
    for (auto& [key, together] : stacks_) {
      together.stack.LayOut(static_cast<int64_t>(together.tasks.size()), layout_);
      for (size_t i = 0; i < together.tasks.size(); ++i) {
        AddDirection(*together.tasks[i], together.stack.direction(i));
      }
    }
    absl::Status added = sequence_.AddFormula(rule_.direction, directions_);
    void* const sums = layout_.Take(static_cast<int64_t>(squares_.bytes_of_sums()));
    sequence_.AddSquares(squares_, sums, /*of_spans=*/true);
    ScaleAll(squares_.SpansIn(sums));
    HalvesTable widened(/*is_double=*/true);
    for (auto& [key, together] : stacks_) {
      MatrixStack& stack = together.stack;
      const auto count = static_cast<int64_t>(together.tasks.size());
      for (int step = 0; step < together.iteration.steps; ++step) {
        stack.Iterate(together.iteration, count, sequence_);
      }
      for (size_t i = 0; i < together.tasks.size(); ++i) {
        if (stack.is_double()) widened.Add(SpanOf(stack, i));
        AddStep(*together.tasks[i], stack.is_double() ? stack.direction(i) : stack.x(i));
      }
    }
    sequence_.AddHalves(HalvesPhase::kWiden, widened);
    if (added.ok()) added = sequence_.AddFormula(rule_.step, steps_);
    if (!added.ok()) return added;
    return std::move(sequence_);
  }

 private:
  // Rows, columns, and what is computed in; what an Iteration has.
  using Key = std::tuple<int64_t, int64_t, DType, float, float, float, int>;
  using ShapeKey = std::tuple<const Coefficients*, int64_t, int64_t>;
  struct Together {
    MatrixStack stack;
    Iteration iteration;
    std::vector<const UpdateTask*> tasks;
  };

  static HalvesSpan SpanOf(const MatrixStack& stack, size_t index) {
    HalvesSpan span;
    span.numbers = stack.direction(index).data();
    span.halves = stack.x(index).data();
    span.elements = stack.elements();
    return span;
  }

  // `of_task`: the squares of each direction, in the order in which they were added.
  void ScaleAll(const SumOfSquaresOnDevice* of_task) {
    HalvesTable tables[] = {HalvesTable(/*is_double=*/false), HalvesTable(/*is_double=*/true)};
    for (const auto& [key, together] : stacks_) {
      for (size_t i = 0; i < together.tasks.size(); ++i) {
        HalvesSpan span = SpanOf(together.stack, i);
        span.squares = of_task++;
        span.eps = together.tasks[i]->coefficients->values[rule_.eps];
        tables[together.stack.is_double() ? 1 : 0].Add(span);
      }
    }
    for (const HalvesTable& table : tables) sequence_.AddHalves(HalvesPhase::kScale, table);
  }

  void AddDirection(const UpdateTask& task, Buffer direction) {
    const auto [known, is_new] = with_direction_.try_emplace(task.coefficients, nullptr);
    if (is_new) {
      Coefficients& more = sequence_.NewCoefficients(*task.coefficients);
      more.slots |= SlotSet{1} << rule_.direction_slot;
      known->second = &more;
    }
    UpdateTask writes = task;
    writes.coefficients = known->second;
    writes.span.slots[rule_.direction_slot] = direction;
    writes.span.keeps_parameter = true;
    directions_.push_back(writes);
    squares_.Add({direction, task.span.elements});
  }

  void AddStep(const UpdateTask& task, Buffer orthogonal) {
    UpdateTask steps = task;
    steps.coefficients = StepOf(task);
    steps.span.gradient = orthogonal;
    steps.span.slots = {};
    steps_.push_back(steps);
  }

  const Coefficients* StepOf(const UpdateTask& task) {
    const Coefficients& given = *task.coefficients;
    const int64_t rows = task.span.shape[0];
    const int64_t columns = task.span.shape[1];
    const auto [known, is_new] = by_shape_.try_emplace({&given, rows, columns}, nullptr);
    if (!is_new) return known->second;
    Coefficients step;
    step.arithmetic = given.arithmetic;
    step.Set(rule_.kept_of_step, given.values[rule_.kept]);
    step.Set(rule_.minus_step_size,
             MinusShapeScaledLr(given.values[rule_.lr] + given.values[rule_.lr_rest],
                                given.values[rule_.matches_adamw], static_cast<double>(rows),
                                static_cast<double>(columns)));
    return known->second = &sequence_.NewCoefficients(step);
  }

  const OrthogonalRule& rule_;
  WorkspaceLayout layout_;
  LaunchSequence sequence_;
  std::map<Key, Together> stacks_;
  std::map<const Coefficients*, const Coefficients*> with_direction_;
  std::map<ShapeKey, const Coefficients*> by_shape_;
  SquaresTable squares_;
  std::vector<UpdateTask> directions_;
  std::vector<UpdateTask> steps_;
};

absl::StatusOr<LaunchSequence> OrthogonalSequence::SequenceOf(absl::Span<const UpdateTask> tasks,
                                                              void* workspace) const {
  Builder builder(rule_, workspace);
  for (const UpdateTask& task : tasks) {
    if (task.span.elements > 0) builder.Add(task);
  }
  return std::move(builder).Finish();
}

}  // namespace optshard

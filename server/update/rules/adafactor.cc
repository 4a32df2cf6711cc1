// Adafactor, as torch.optim has it: steps scaled by averages of the gradient's squares, of which a
// matrix keeps only those of its rows and of its columns. Written as several formulas: sums come
// between them. On a device, too (FactoredSequence).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "server/update/define_rule-inl.h"
#include "server/update/norm_ratio.h"
#ifdef OPTSHARD_KERNELS
#include "server/update/cuda/kernel_rules.h"
#else
#include "common/default_floating_point.h"
#include "common/simd/norms.h"
#include "server/update/matrices.h"
#include "server/update/parameter_squares.h"
#endif

OPTSHARD_BEGIN_FORMULA();

// The formulas write the update into the workspace, which takes the parameter's place.
struct AdafactorConstants {
  // As in RuleSpec::slots. A matrix has the first two, everything else the third.
  enum SlotOfRule { kRowVar, kColVar, kVariance };
  enum Coefficient {
    kSign,  // -1 where the objective is maximized
    kWeight,
    kOneMinusWeight,
    kEpsSquared,  // of the first eps
    kShrink,      // 1 - lr * weight_decay
    kMinusStepSize,
    // Not the formulas':
    kFirstEps,
    kSecondEps,
    kRho,
    kClip,
  };
};

// A vector's update.
struct AdafactorVector : AdafactorConstants {
  enum Slot { kVariance };
  using Variants = VariantsBySlots<SlotSetOf(kVariance)>;

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& update, Slots& slots) {
    E& variance = slots[kVariance];
    gradient = c[kSign] * gradient;
    variance = Lerp(variance, gradient * gradient, c.number(kWeight), c.number(kOneMinusWeight));
    update = gradient / Sqrt(Max(variance, c[kEpsSquared]));
  }
};

OPTSHARD_END_FORMULA(AdafactorVector);

OPTSHARD_BEGIN_FORMULA();

// A matrix's update begins as its gradient.
struct AdafactorGradient : AdafactorConstants {
  using Variants = VariantsBySlots<SlotSetOf()>;

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& update, Slots&) {
    update = c[kSign] * gradient;
  }
};

OPTSHARD_END_FORMULA(AdafactorGradient);

OPTSHARD_BEGIN_FORMULA();

// An average over rows or columns goes on by the mean of this step; `exact` is it, not rounded to
// what the slot is kept in.
struct AdafactorAverage : AdafactorConstants {
  enum Slot { kAverage };
  using Variants = VariantsBySlots<SlotSetOf(kAverage)>;

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E mean, E& exact, Slots& slots) {
    exact = Lerp(slots[kAverage], mean, c.number(kWeight), c.number(kOneMinusWeight));
    slots[kAverage] = exact;
  }
};

OPTSHARD_END_FORMULA(AdafactorAverage);

OPTSHARD_BEGIN_FORMULA();

// The estimate of the variance takes the gradient's place.
struct AdafactorMatrix : AdafactorConstants {
  using Variants = VariantsBySlots<SlotSetOf()>;

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E estimate, E& update, Slots&) {
    update = update / Sqrt(Max(estimate, c[kEpsSquared]));
  }
};

OPTSHARD_END_FORMULA(AdafactorMatrix);

OPTSHARD_BEGIN_FORMULA();

// The update takes the gradient's place.
struct AdafactorStep : AdafactorConstants {
  using Variants = VariantsBySlots<SlotSetOf()>;

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E update, E& parameter, Slots&) {
    parameter = c[kShrink] * parameter + c[kMinusStepSize] * update;
  }
};

OPTSHARD_END_FORMULA(AdafactorStep);

#ifdef OPTSHARD_KERNELS
namespace optshard {
namespace kernels {
namespace {

FactoredRule Adafactor() {
  FactoredRule rule;
  rule.rule = "adafactor";
  rule.vector = "AdafactorVector";
  rule.gradient = "AdafactorGradient";
  rule.average = "AdafactorAverage";
  rule.matrix = "AdafactorMatrix";
  rule.step = "AdafactorStep";
  rule.row_slot = AdafactorConstants::kRowVar;
  rule.column_slot = AdafactorConstants::kColVar;
  rule.vector_slot = AdafactorConstants::kVariance;
  rule.first_eps = AdafactorConstants::kFirstEps;
  rule.rho = AdafactorConstants::kRho;
  rule.second_eps = AdafactorConstants::kSecondEps;
  rule.clip = AdafactorConstants::kClip;
  rule.minus_step_size = AdafactorConstants::kMinusStepSize;
  return rule;
}

const bool registered_adafactor [[maybe_unused]] = KernelRules<FactoredRule>::Register(Adafactor());

}  // namespace
}  // namespace kernels
}  // namespace optshard
#endif  // OPTSHARD_KERNELS

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

using Constant = AdafactorStep::Coefficient;
constexpr int64_t kTile = kNormBlock;  // elements, in the first-level cache

using SlotIndex = AdafactorStep::SlotOfRule;
using Shape = absl::optional<std::vector<int64_t>>;

// Of shape `parameter`, but of extent 1 in the dimension that is averaged over, counted from the
// last one.
Shape AveragedOver(int from_last, absl::Span<const int64_t> parameter) {
  if (!HasMatrices(parameter)) return absl::nullopt;
  std::vector<int64_t> shape(parameter.begin(), parameter.end());
  *(shape.end() - from_last) = 1;
  return shape;
}
Shape RowShape(absl::Span<const int64_t> parameter) { return AveragedOver(1, parameter); }
Shape ColumnShape(absl::Span<const int64_t> parameter) { return AveragedOver(2, parameter); }
Shape VectorShape(absl::Span<const int64_t> parameter) {
  if (HasMatrices(parameter)) return absl::nullopt;
  return std::vector<int64_t>(parameter.begin(), parameter.end());
}

RuleSpec AdafactorSpec() {
  RuleSpec spec;
  spec.name = "adafactor";
  spec.doc = "Adafactor: steps scaled by averages of squares that take little memory";
  spec.source = "https://docs.pytorch.org/docs/2.11/generated/torch.optim.Adafactor.html";
  spec.element_wise = false;
  spec.exports_step = true;
  spec.options = {
      options::NonNegative("lr", 1e-2, "largest relative step, and unit of the weight decay"),
      options::NonPositive("beta2_decay", -0.8,
                           "power of the step count that is the weight of the newest squares"),
      options::NonNegativePair(
          "eps", {0, 1e-3},
          "least root of a variance, where 0 is PyTorch's None: the machine epsilon of the type "
          "that is computed in, 1.2e-07 or, of float64 parameters, 2.2e-16; and least root mean "
          "square of the parameter by which steps are scaled"),
      options::AtLeast1("d", 1, "root mean square above which an update is scaled down to it"),
      options::NonNegative("weight_decay", 0, "share of lr by which the parameter shrinks"),
      options::Flag("maximize", false, "ascend instead of descend"),
  };
  spec.slots = {{"row_var", "running average of the mean square of each row"},
                {"col_var", "running average of the mean square of each column"},
                {"variance", "running average of the gradient's square"}};
  spec.slots[SlotIndex::kRowVar].extent = {
      &RowShape, "of a parameter with two or more dimensions, in the shape [..., rows, 1]"};
  spec.slots[SlotIndex::kColVar].extent = {
      &ColumnShape, "of a parameter with two or more dimensions, in the shape [..., 1, columns]"};
  spec.slots[SlotIndex::kVariance].extent = {
      &VectorShape, "of a parameter with fewer dimensions, or without elements"};
  return spec;
}

class AdafactorRule final : public UpdateRule {
 public:
  const RuleSpec& spec() const override { return spec_; }

  int64_t WorkspaceBytes(absl::Span<const int64_t> shape, DType dtype) const override {
    return ArithmeticOf(dtype) == DType::kFloat64 ? MatrixWorkspace<double>(nullptr, shape).bytes()
                                                  : MatrixWorkspace<float>(nullptr, shape).bytes();
  }

  void Update(DriverKind driver, const Coefficients& coefficients,
              const SpanUpdate& span) const override {
    if (span.elements == 0) return;
    const DefaultFloatingPoint default_mode;
    if (coefficients.arithmetic == DType::kFloat64) {
      UpdateIn<double>(driver, coefficients, span);
    } else {
      UpdateIn<float>(driver, coefficients, span);
    }
  }

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber step,
                       Coefficients* out) const override {
    const auto count = static_cast<double>(step);
    const double lr = group.Number("lr");
    const double weight = std::pow(count, group.Number("beta2_decay"));
    const Numbers eps = group.List("eps");
    double first_eps = eps[0];
    if (first_eps == 0) {
      first_eps = out->arithmetic == DType::kFloat64 ? std::numeric_limits<double>::epsilon()
                                                     : std::numeric_limits<float>::epsilon();
    }
    out->Set(Constant::kSign, group.Flag("maximize") ? -1 : 1);
    out->Set(Constant::kWeight, weight);
    out->Set(Constant::kOneMinusWeight, 1 - weight);
    out->Set(Constant::kEpsSquared, first_eps * first_eps);
    out->Set(Constant::kShrink, 1 - lr * group.Number("weight_decay"));
    // These take part in what is computed in double, and are rounded with it.
    out->values[Constant::kFirstEps] = first_eps;
    out->values[Constant::kSecondEps] = eps[1];
    out->values[Constant::kRho] = std::min(lr, 1 / std::sqrt(count));
    out->values[Constant::kClip] = group.Number("d");
  }

 private:
  // Sums of squares, of the parameter before the step and of the update.
  struct Squares {
    double parameter = 0;
    double update = 0;

    void Add(const SpanUpdate& part, ConstBuffer update_of_part) {
      parameter = SumOfParameterSquares(part, parameter);
      update = SumOfSquares(update_of_part, part.elements, update);
    }
  };

  // The formulas of one update.
  class Formulas {
   public:
    Formulas(const AdafactorRule& rule, DriverKind driver, const Coefficients& coefficients)
        : rule_(rule), driver_(driver), coefficients_(coefficients) {}

    double operator[](Constant index) const { return coefficients_.values[index]; }
    void Set(Constant index, double value) { coefficients_.Set(index, value); }
    // With the slots that the span has.
    void Run(const FormulaDrivers& formula, const SpanUpdate& span) {
      coefficients_.slots = span.slots[0] ? 1 : 0;
      RunFormula(rule_.spec_, formula, driver_, coefficients_, span);
    }

   private:
    const AdafactorRule& rule_;
    const DriverKind driver_;
    Coefficients coefficients_;
  };

  template <typename T>
  void UpdateIn(DriverKind driver, const Coefficients& coefficients, const SpanUpdate& span) const {
    Formulas formulas(*this, driver, coefficients);
    const MatrixWorkspace<T> workspace(span.workspace, span.shape);
    SpanUpdate step = span;
    step.slots = {};
    const Squares squares = HasMatrices(span.shape)
                                ? UpdateOfMatrices(formulas, step, span.slots, workspace)
                                : UpdateOfVector(formulas, step, span.slots, workspace);
    formulas.Set(Constant::kMinusStepSize,
                 MinusRelativeStep(formulas[Constant::kRho], formulas[Constant::kSecondEps],
                                   formulas[Constant::kClip], static_cast<double>(span.elements),
                                   squares.parameter, squares.update));
    step.gradient = workspace.elements;
    step.replicas.gradients = {};
    step.replicas.group_sizes = {};
    formulas.Run(step_, step);
  }

  using SlotArrays = std::array<SlotArray, kMaxSlots>;

  // The span with the update in place of the parameter.
  static SpanUpdate IntoUpdate(const SpanUpdate& span, Buffer update) {
    SpanUpdate into = span;
    into.parameter = update;
    into.master = nullptr;
    into.rounded_to = DType::kFloat32;
    into.correction = nullptr;
    into.replicas.copies = {};
    return into;
  }

  template <typename T>
  Squares UpdateOfVector(Formulas& formulas, const SpanUpdate& span, const SlotArrays& slots,
                         const MatrixWorkspace<T>& workspace) const {
    SpanUpdate into = IntoUpdate(span, workspace.elements);
    into.slots = {slots[SlotIndex::kVariance]};
    Squares squares;
    for (int64_t begin = 0; begin < span.elements; begin += kMatrixChunk) {
      const int64_t count = std::min(kMatrixChunk, span.elements - begin);
      formulas.Run(vector_, into.Part(begin, count));
      squares.Add(span.Part(begin, count), workspace.elements + begin);
    }
    return squares;
  }

  template <typename T>
  Squares UpdateOfMatrices(Formulas& formulas, const SpanUpdate& span, const SlotArrays& slots,
                           const MatrixWorkspace<T>& workspace) const {
    const Matrices matrices(span.shape);
    Squares squares;
    for (int64_t first = 0; first < matrices.count; first += matrices.at_a_time) {
      const int64_t count = std::min(matrices.at_a_time, matrices.count - first);
      AverageSquares(formulas, span, slots, matrices, first, count, workspace);
      DivideByMeans(formulas, matrices, count, workspace.row_averages);
      ScaleByVariance(formulas, span, matrices, first, count, workspace, &squares);
    }
    return squares;
  }

  // Writes the gradient of `count` matrices from number `first` on to the workspace, and the
  // averages over its rows and columns.
  template <typename T>
  void AverageSquares(Formulas& formulas, const SpanUpdate& span, const SlotArrays& slots,
                      const Matrices& matrices, int64_t first, int64_t count,
                      const MatrixWorkspace<T>& workspace) const {
    const SpanUpdate into = IntoUpdate(span, workspace.elements);
    const int64_t rows = count * matrices.rows;
    std::fill_n(workspace.column_sums, count * matrices.columns, 0.0);
    for (int64_t row = 0; row < rows; row += matrices.rows_at_a_time) {
      MatrixExtent extent;
      extent.rows = std::min(matrices.rows_at_a_time, rows - row);
      extent.columns = matrices.columns;
      extent.matrix_rows = matrices.rows;
      const int64_t begin = (first * matrices.rows + row) * matrices.columns;
      formulas.Run(gradient_, into.Part(begin, extent.rows * extent.columns));
      SumSquaresByRowAndColumn(workspace.elements + begin, extent, workspace.row_sums,
                               workspace.column_sums);
      Average(formulas, workspace.row_sums, extent.rows, matrices.columns,
              slots[SlotIndex::kRowVar].From(first * matrices.rows + row),
              workspace.row_averages + row);
    }
    Average(formulas, workspace.column_sums, count * matrices.columns, matrices.rows,
            slots[SlotIndex::kColVar].From(first * matrices.columns), workspace.column_averages);
  }

  // Of sums over `summed` elements each.
  template <typename T>
  void Average(Formulas& formulas, const double* sums, int64_t count, int64_t summed,
               const SlotArray& slot, T* exact) const {
    T means[kTile];
    for (int64_t begin = 0; begin < count; begin += kTile) {
      SpanUpdate span;
      span.elements = std::min(kTile, count - begin);
      for (int64_t i = 0; i < span.elements; ++i) {
        means[i] = static_cast<T>(sums[begin + i] / static_cast<double>(summed));
      }
      span.gradient = means;
      span.parameter = exact + begin;
      span.slots = {slot.From(begin)};
      formulas.Run(average_, span);
    }
  }

  // Divides the averages of each matrix's rows by their mean.
  template <typename T>
  static void DivideByMeans(const Formulas& formulas, const Matrices& matrices, int64_t count,
                            T* averages) {
    for (int64_t m = 0; m < count; ++m, averages += matrices.rows) {
      double sum = 0;
      for (int64_t row = 0; row < matrices.rows; ++row) sum += static_cast<double>(averages[row]);
      const double mean =
          std::max(sum / static_cast<double>(matrices.rows), formulas[Constant::kFirstEps]);
      for (int64_t row = 0; row < matrices.rows; ++row) {
        averages[row] = static_cast<T>(static_cast<double>(averages[row]) / mean);
      }
    }
  }

  // Divides the gradient in the workspace by the root of what rows and columns make of its
  // variance.
  template <typename T>
  void ScaleByVariance(Formulas& formulas, const SpanUpdate& span, const Matrices& matrices,
                       int64_t first, int64_t count, const MatrixWorkspace<T>& workspace,
                       Squares* squares) const {
    const int64_t size = matrices.rows * matrices.columns;
    T estimates[kTile];
    for (int64_t begin = 0; begin < count * size; begin += kTile) {
      const int64_t elements = std::min(kTile, count * size - begin);
      ProductsOfAverages(matrices, begin, elements, workspace, estimates);
      SpanUpdate scaled;
      scaled.elements = elements;
      scaled.gradient = estimates;
      scaled.parameter = workspace.elements + first * size + begin;
      formulas.Run(matrix_, scaled);
      squares->Add(span.Part(first * size + begin, elements), scaled.parameter);
    }
  }

  const RuleSpec spec_ = AdafactorSpec();
  const FormulaDrivers vector_ = DriversOf<AdafactorVector>();
  const FormulaDrivers gradient_ = DriversOf<AdafactorGradient>();
  const FormulaDrivers average_ = DriversOf<AdafactorAverage>();
  const FormulaDrivers matrix_ = DriversOf<AdafactorMatrix>();
  const FormulaDrivers step_ = DriversOf<AdafactorStep>();
};

OPTSHARD_REGISTER_RULE(AdafactorRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

// LAMB: Adam's direction, scaled for each parameter by the ratio of its norm to the direction's.
// Written as two formulas: the norms come between them. On a device, too (NormScaledSequence).

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "server/update/define_rule-inl.h"
#include "server/update/norm_ratio.h"
#ifdef OPTSHARD_KERNELS
#include "server/update/cuda/kernel_rules.h"
#else
#include "common/default_floating_point.h"
#include "common/simd/norms.h"
#include "server/update/parameter_squares.h"
#endif

OPTSHARD_BEGIN_FORMULA();

struct LambDirection {
  // The direction is written as if it were a slot; the parameter stays as it is.
  enum Slot { kExpAvg, kExpAvgSq, kDirection };
  using Variants = VariantsBySlots<SlotSetOf(kExpAvg, kExpAvgSq, kDirection)>;
  enum Coefficient {
    kSign,  // -1 where the objective is maximized
    kBeta1,
    kOneMinusBeta1,
    kBeta2,
    kOneMinusBeta2,
    kBiasCorrection1,      // 1 - beta1^step
    kSqrtBiasCorrection2,  // sqrt(1 - beta2^step)
    kEps,
    kWeightDecay,
    kLr,        // not the formula's
    kIsScaled,  // likewise: 1, or 0 where the ratio of norms is taken for 1
  };

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
                                     Slots& slots) {
    E& exp_avg = slots[kExpAvg];
    E& exp_avg_sq = slots[kExpAvgSq];
    gradient = c[kSign] * gradient;
    exp_avg = Lerp(exp_avg, gradient, c.number(kOneMinusBeta1), c.number(kBeta1));
    exp_avg_sq = c[kBeta2] * exp_avg_sq + c[kOneMinusBeta2] * gradient * gradient;
    const E denominator = RootOver(exp_avg_sq, c[kSqrtBiasCorrection2]) + c[kEps];
    slots[kDirection] = exp_avg / c[kBiasCorrection1] / denominator + c[kWeightDecay] * parameter;
  }
};

OPTSHARD_END_FORMULA(LambDirection);

OPTSHARD_BEGIN_FORMULA();

struct LambStep {
  using Variants = VariantsBySlots<SlotSetOf()>;
  enum Coefficient { kMinusStepSize };

  // The direction takes the gradient's place.
  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E direction, E& parameter, Slots&) {
    parameter = parameter + c[kMinusStepSize] * direction;
  }
};

OPTSHARD_END_FORMULA(LambStep);

#ifdef OPTSHARD_KERNELS
namespace optshard {
namespace kernels {
namespace {

const bool registered_lamb [[maybe_unused]] = KernelRules<NormScaledRule>::Register(
    {"lamb", "LambDirection", "LambStep", LambDirection::kDirection, LambDirection::kLr,
     LambDirection::kIsScaled, LambStep::kMinusStepSize});

}  // namespace
}  // namespace kernels
}  // namespace optshard
#endif  // OPTSHARD_KERNELS

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec LambSpec() {
  RuleSpec spec;
  spec.name = "lamb";
  spec.doc = "LAMB: Adam with a step size of its own for each parameter, for large batches";
  spec.source = "https://arxiv.org/abs/1904.00962, algorithm 2";
  spec.element_wise = false;
  spec.exports_step = true;
  spec.options = {
      options::NonNegative("lr", 1e-3, "learning rate"),
      options::DecayRates("betas", {0.9, 0.999}, "decay of the averages of gradient and square"),
      options::NonNegative("eps", 1e-6, "added to the denominator"),
      options::NonNegative("weight_decay", 1e-2, "share of the parameter in the direction"),
      options::Flag("bias_correction", true, "correct the averages for their start at 0"),
      options::Flag("always_adapt", true,
                    "false: a group without weight_decay has lr as its step size"),
      options::Flag("maximize", false, "ascend instead of descend"),
  };
  spec.slots = {
      {"exp_avg", "running average of the gradient", "", "", EightBit::kSigned},
      {"exp_avg_sq", "running average of its square", "", "", EightBit::kNonNegative},
  };
  return spec;
}

class LambRule final : public UpdateRule {
 public:
  const RuleSpec& spec() const override { return spec_; }

  // The direction.
  int64_t WorkspaceBytes(absl::Span<const int64_t> shape, DType dtype) const override {
    int64_t bytes = static_cast<int64_t>(SizeOf(ArithmeticOf(dtype)));
    for (const int64_t extent : shape) bytes *= extent;
    return bytes;
  }

  void Update(DriverKind driver, const Coefficients& coefficients,
              const SpanUpdate& span) const override {
    const DefaultFloatingPoint default_mode;
    const Buffer direction(span.workspace, coefficients.arithmetic);
    SpanUpdate first = span;
    first.slots[LambDirection::kDirection] = direction;
    first.replicas.copies = {};
    first.keeps_parameter = true;
    Coefficients with_direction = coefficients;
    with_direction.slots = SlotSet{1} << LambDirection::kDirection | coefficients.slots;
    double parameter_squares = 0;
    double direction_squares = 0;
    for (int64_t begin = 0; begin < span.elements; begin += kChunk) {
      const int64_t count = std::min(kChunk, span.elements - begin);
      RunFormula(spec_, direction_, driver, with_direction, first.Part(begin, count));
      parameter_squares = SumOfParameterSquares(first.Part(begin, count), parameter_squares);
      direction_squares = SumOfSquares(direction.From(begin), count, direction_squares);
    }

    Coefficients step;
    step.arithmetic = coefficients.arithmetic;
    step.Set(LambStep::kMinusStepSize,
             MinusNormScaledLr(coefficients.values[LambDirection::kLr],
                               coefficients.values[LambDirection::kIsScaled], parameter_squares,
                               direction_squares));
    SpanUpdate second = span;
    second.gradient = direction;
    second.slots = {};
    second.replicas.gradients = {};
    second.replicas.group_sizes = {};
    RunFormula(spec_, step_, driver, step, second);
  }

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber step,
                       Coefficients* out) const override {
    const Numbers betas = group.List("betas");
    const bool corrects = group.Flag("bias_correction");
    const double decay = group.Number("weight_decay");
    const auto correction = [&](double beta) {
      return corrects ? 1 - std::pow(beta, static_cast<double>(step)) : 1;
    };
    out->Set(LambDirection::kSign, group.Flag("maximize") ? -1 : 1);
    out->Set(LambDirection::kBeta1, betas[0]);
    out->Set(LambDirection::kOneMinusBeta1, 1 - betas[0]);
    out->Set(LambDirection::kBeta2, betas[1]);
    out->Set(LambDirection::kOneMinusBeta2, 1 - betas[1]);
    out->Set(LambDirection::kBiasCorrection1, correction(betas[0]));
    out->Set(LambDirection::kSqrtBiasCorrection2, std::sqrt(correction(betas[1])));
    out->Set(LambDirection::kEps, group.Number("eps"));
    out->Set(LambDirection::kWeightDecay, decay);
    out->Set(LambDirection::kLr, group.Number("lr"));
    out->Set(LambDirection::kIsScaled, group.Flag("always_adapt") || decay != 0 ? 1 : 0);
  }

 private:
  // Elements whose norms are computed while they are in the second-level cache.
  static constexpr int64_t kChunk = 16 * kNormBlock;

  const RuleSpec spec_ = LambSpec();
  const FormulaDrivers direction_ = DriversOf<LambDirection>();
  const FormulaDrivers step_ = DriversOf<LambStep>();
};

OPTSHARD_REGISTER_RULE(LambRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

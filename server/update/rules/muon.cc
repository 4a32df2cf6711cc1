// Muon: the direction of momentum, made orthogonal. Written as two formulas: the products of
// matrices come between them. On a device, too (OrthogonalSequence).

#include <algorithm>
#include <cstdint>

#include "server/update/define_rule-inl.h"
#include "server/update/norm_ratio.h"
#ifdef OPTSHARD_KERNELS
#include "server/update/cuda/kernel_rules.h"
#else
#include "common/checked_math.h"
#include "common/default_floating_point.h"
#include "server/update/matrix/newton_schulz.h"
#include "server/update/matrix/onednn_loader.h"
#endif

OPTSHARD_BEGIN_FORMULA();

struct MuonDirection {
  // The direction is written as if it were a slot; the parameter stays as it is.
  enum Slot { kMomentumBuffer, kDirection };
  using Variants = VariantsBySlots<SlotSetOf(kMomentumBuffer, kDirection)>;
  enum Coefficient {
    kMomentum,
    kOneMinusMomentum,
    kBufferWeight,  // of the buffer in the direction: momentum with nesterov, 1 without
    kGradientWeight,
    // Not the formula's.
    kLr,
    kLrRest,
    kMatchesAdamW,  // 1 or 0: which adjust_lr_fn
    kKept,          // of the parameter, by weight decay
    kA,
    kB,
    kC,
    kSteps,
    kEps,
  };

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E&, Slots& slots) {
    E& buffer = slots[kMomentumBuffer];
    buffer = Lerp(buffer, gradient, c.number(kOneMinusMomentum), c.number(kMomentum));
    slots[kDirection] = Lerp(gradient, buffer, c.number(kBufferWeight), c.number(kGradientWeight));
  }
};

OPTSHARD_END_FORMULA(MuonDirection);

OPTSHARD_BEGIN_FORMULA();

struct MuonStep {
  using Variants = VariantsBySlots<SlotSetOf()>;
  enum Coefficient { kKept, kMinusStepSize };

  // The orthogonal direction takes the gradient's place.
  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E direction, E& parameter, Slots&) {
    parameter = c[kKept] * parameter + c[kMinusStepSize] * direction;
  }
};

OPTSHARD_END_FORMULA(MuonStep);

#ifdef OPTSHARD_KERNELS
namespace optshard {
namespace kernels {
namespace {

OrthogonalRule OrthogonalMuon() {
  OrthogonalRule muon;
  muon.rule = "muon";
  muon.direction = "MuonDirection";
  muon.step = "MuonStep";
  muon.direction_slot = MuonDirection::kDirection;
  muon.a = MuonDirection::kA;
  muon.b = MuonDirection::kB;
  muon.c = MuonDirection::kC;
  muon.steps = MuonDirection::kSteps;
  muon.eps = MuonDirection::kEps;
  muon.lr = MuonDirection::kLr;
  muon.lr_rest = MuonDirection::kLrRest;
  muon.matches_adamw = MuonDirection::kMatchesAdamW;
  muon.kept = MuonDirection::kKept;
  muon.kept_of_step = MuonStep::kKept;
  muon.minus_step_size = MuonStep::kMinusStepSize;
  return muon;
}

const bool registered_muon [[maybe_unused]] =
    KernelRules<OrthogonalRule>::Register(OrthogonalMuon());

}  // namespace
}  // namespace kernels
}  // namespace optshard
#endif  // OPTSHARD_KERNELS

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec MuonSpec() {
  RuleSpec spec;
  spec.name = "muon";
  spec.doc =
      "Muon: momentum, made orthogonal by a Newton-Schulz iteration, for the matrices of hidden "
      "layers; what else a model has takes another rule, such as adamw, in a group of its own";
  spec.source = "https://docs.pytorch.org/docs/2.11/generated/torch.optim.Muon.html";
  spec.element_wise = false;
  spec.options = {
      options::NonNegative("lr", 1e-3, "learning rate"),
      options::NonNegative("weight_decay", 0.1, "share of lr by which the parameter shrinks"),
      options::NonNegative("momentum", 0.95, "decay of the average of the gradient"),
      options::Flag("nesterov", true, "look one momentum step ahead"),
      options::FiniteNumbers("ns_coefficients", {3.4445, -4.7750, 2.0315},
                             "a, b and c of the iteration a x + (b g + c g g) x, g = x xT"),
      options::Positive("eps", 1e-7, "the least norm that the direction is divided by"),
      options::Whole("ns_steps", 5, 0, 99, "iterations"),
      options::Choice("adjust_lr_fn", {"original", "match_rms_adamw"},
                      "lr by the shape: times sqrt(max(1, rows / columns)), or "
                      "0.2 sqrt(max(rows, columns)), which suits an lr of AdamW"),
  };
  spec.slots = {
      {"momentum_buffer", "running average of the gradient", "", "", EightBit::kSigned},
  };
  return spec;
}

class MuonRule final : public UpdateRule {
 public:
  const RuleSpec& spec() const override { return spec_; }

  absl::Status CheckParameter(absl::Span<const int64_t> shape) const override {
    if (shape.size() != 2) {
      return absl::InvalidArgumentError(
          "rule \"muon\" takes matrices, which have two dimensions; put the parameter into a param "
          "group with another rule, such as \"adamw\"");
    }
    return LoadOneDnn();
  }

  // The products are of the shorter side's square with the longer side.
  int64_t UpdateCost(absl::Span<const int64_t> shape) const override {
    const int64_t shorter = std::min(shape[0], shape[1]);
    return SaturatingMultiply(std::max(shape[0], shape[1]), SaturatingMultiply(shorter, shorter));
  }

  // The direction, and what it is made orthogonal in.
  int64_t WorkspaceBytes(absl::Span<const int64_t> shape, DType dtype) const override {
    return DirectionBytes(shape[0] * shape[1], ArithmeticOf(dtype)) +
           NewtonSchulz::WorkspaceBytes(shape[0], shape[1]);
  }

  void Update(DriverKind driver, const Coefficients& coefficients,
              const SpanUpdate& span) const override {
    if (span.elements == 0) return;
    const DefaultFloatingPoint default_mode;
    const Buffer direction(span.workspace, coefficients.arithmetic);
    SpanUpdate first = span;
    first.slots[MuonDirection::kDirection] = direction;
    first.replicas.copies = {};
    first.keeps_parameter = true;
    Coefficients with_direction = coefficients;
    with_direction.slots = SlotSet{1} << MuonDirection::kDirection | coefficients.slots;
    RunFormula(spec_, direction_, driver, with_direction, first);

    const std::array<double, kMaxCoefficients>& values = coefficients.values;
    NewtonSchulz orthogonal;
    orthogonal.rows = span.shape[0];
    orthogonal.columns = span.shape[1];
    orthogonal.a = static_cast<float>(values[MuonDirection::kA]);
    orthogonal.b = static_cast<float>(values[MuonDirection::kB]);
    orthogonal.c = static_cast<float>(values[MuonDirection::kC]);
    orthogonal.steps = static_cast<int>(values[MuonDirection::kSteps]);
    orthogonal.eps = values[MuonDirection::kEps];
    char* const workspace =
        static_cast<char*>(span.workspace) + DirectionBytes(span.elements, coefficients.arithmetic);

    SpanUpdate second = span;
    second.gradient = orthogonal.Run(direction, workspace);
    second.slots = {};
    second.replicas.gradients = {};
    second.replicas.group_sizes = {};
    Coefficients step;
    step.arithmetic = coefficients.arithmetic;
    step.Set(MuonStep::kKept, values[MuonDirection::kKept]);
    step.Set(
        MuonStep::kMinusStepSize,
        MinusShapeScaledLr(values[MuonDirection::kLr] + values[MuonDirection::kLrRest],
                           values[MuonDirection::kMatchesAdamW], static_cast<double>(span.shape[0]),
                           static_cast<double>(span.shape[1])));
    RunFormula(spec_, step_, driver, step, second);
  }

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber, Coefficients* out) const override {
    const double lr = group.Number("lr");
    const double momentum = group.Number("momentum");
    const double buffer_weight = group.Flag("nesterov") ? momentum : 1;
    const Numbers factors = group.List("ns_coefficients");
    out->Set(MuonDirection::kMomentum, momentum);
    out->Set(MuonDirection::kOneMinusMomentum, 1 - momentum);
    out->Set(MuonDirection::kBufferWeight, buffer_weight);
    out->Set(MuonDirection::kGradientWeight, 1 - buffer_weight);
    out->SetWithRest(MuonDirection::kLr, MuonDirection::kLrRest, lr);
    out->Set(MuonDirection::kMatchesAdamW,
             group.Choice("adjust_lr_fn") == "match_rms_adamw" ? 1 : 0);
    out->Set(MuonDirection::kKept, 1 - lr * group.Number("weight_decay"));
    out->Set(MuonDirection::kA, factors[0]);
    out->Set(MuonDirection::kB, factors[1]);
    out->Set(MuonDirection::kC, factors[2]);
    out->Set(MuonDirection::kSteps, group.Number("ns_steps"));
    out->Set(MuonDirection::kEps, group.Number("eps"));
  }

 private:
  static int64_t DirectionBytes(int64_t elements, DType arithmetic) {
    return (elements * static_cast<int64_t>(SizeOf(arithmetic)) + 63) / 64 * 64;
  }

  const RuleSpec spec_ = MuonSpec();
  const FormulaDrivers direction_ = DriversOf<MuonDirection>();
  const FormulaDrivers step_ = DriversOf<MuonStep>();
};

OPTSHARD_REGISTER_RULE(MuonRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

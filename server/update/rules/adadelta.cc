// Adadelta, with the arithmetic of torch.optim.Adadelta.

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct Adadelta {
  enum Slot { kSquareAvg, kAccDelta };
  using Variants = VariantsBySlots<SlotSetOf(kSquareAvg, kAccDelta)>;
  enum Coefficient {
    kSign,  // -1 where the objective is maximized
    kMinusLr,
    kRho,
    kOneMinusRho,
    kEps,
    kWeightDecay,
  };

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
                                     Slots& slots) {
    E& square_avg = slots[kSquareAvg];
    E& acc_delta = slots[kAccDelta];
    gradient = c[kSign] * gradient;
    if (c.number(kWeightDecay) != 0) gradient = gradient + c[kWeightDecay] * parameter;
    square_avg = c[kRho] * square_avg + c[kOneMinusRho] * gradient * gradient;
    const E delta = Sqrt(acc_delta + c[kEps]) / Sqrt(square_avg + c[kEps]) * gradient;
    acc_delta = c[kRho] * acc_delta + c[kOneMinusRho] * delta * delta;
    parameter = parameter + c[kMinusLr] * delta;
  }
};

OPTSHARD_END_FORMULA(Adadelta);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec AdadeltaSpec() {
  RuleSpec spec;
  spec.name = "adadelta";
  spec.doc = "Adadelta: steps scaled by running averages of the squares of gradient and step";
  spec.source = "https://docs.pytorch.org/docs/2.11/generated/torch.optim.Adadelta.html";
  spec.exports_step = true;
  spec.options = {
      options::NonNegative("lr", 1.0, "share of the step that is taken"),
      options::Fraction("rho", 0.9, "decay of the averages"),
      options::NonNegative("eps", 1e-6, "added below both roots"),
      options::NonNegative("weight_decay", 0, "L2 penalty, added to the gradient"),
      options::Flag("maximize", false, "ascend instead of descend"),
  };
  spec.slots = {
      {"square_avg", "running average of the gradient's square"},
      {"acc_delta", "running average of the step's square"},
  };
  return spec;
}

class AdadeltaRule final : public ElementWiseRule {
 public:
  AdadeltaRule() : ElementWiseRule(AdadeltaSpec(), DriversOf<Adadelta>()) {}

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber, Coefficients* out) const override {
    out->Set(Adadelta::kSign, group.Flag("maximize") ? -1 : 1);
    out->Set(Adadelta::kMinusLr, -group.Number("lr"));
    out->Set(Adadelta::kRho, group.Number("rho"));
    out->Set(Adadelta::kOneMinusRho, 1 - group.Number("rho"));
    out->Set(Adadelta::kEps, group.Number("eps"));
    out->Set(Adadelta::kWeightDecay, group.Number("weight_decay"));
  }
};

OPTSHARD_REGISTER_RULE(AdadeltaRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

// Adamax, with the arithmetic of torch.optim.Adamax.

#include <cmath>

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct Adamax {
  enum Slot { kExpAvg, kExpInf };
  using Variants = VariantsBySlots<SlotSetOf(kExpAvg, kExpInf)>;
  enum Coefficient {
    kSign,  // -1 where the objective is maximized
    kBeta1,
    kOneMinusBeta1,
    kBeta2,
    kEps,
    kMinusStepSize,  // -lr / (1 - beta1^step)
    kWeightDecay,
  };

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
                                     Slots& slots) {
    E& exp_avg = slots[kExpAvg];
    E& exp_inf = slots[kExpInf];
    gradient = c[kSign] * gradient;
    if (c.number(kWeightDecay) != 0) gradient = gradient + c[kWeightDecay] * parameter;
    exp_avg = Lerp(exp_avg, gradient, c.number(kOneMinusBeta1), c.number(kBeta1));
    exp_inf = Max(c[kBeta2] * exp_inf, Abs(gradient) + c[kEps]);
    parameter = parameter + c[kMinusStepSize] * exp_avg / exp_inf;
  }
};

OPTSHARD_END_FORMULA(Adamax);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec AdamaxSpec() {
  RuleSpec spec;
  spec.name = "adamax";
  spec.doc = "Adamax: Adam with the largest gradient of late in place of the average square";
  spec.source = "https://docs.pytorch.org/docs/2.11/generated/torch.optim.Adamax.html";
  spec.exports_step = true;
  spec.options = {
      options::NonNegative("lr", 2e-3, "learning rate"),
      options::DecayRates("betas", {0.9, 0.999}, "decay of the average and of the largest"),
      options::NonNegative("eps", 1e-8, "added to the gradient's size"),
      options::NonNegative("weight_decay", 0, "L2 penalty, added to the gradient"),
      options::Flag("maximize", false, "ascend instead of descend"),
  };
  spec.slots = {
      {"exp_avg", "running average of the gradient"},
      {"exp_inf", "largest size of a gradient, decaying"},
  };
  return spec;
}

class AdamaxRule final : public ElementWiseRule {
 public:
  AdamaxRule() : ElementWiseRule(AdamaxSpec(), DriversOf<Adamax>()) {}

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber step,
                       Coefficients* out) const override {
    const Numbers betas = group.List("betas");
    out->Set(Adamax::kSign, group.Flag("maximize") ? -1 : 1);
    out->Set(Adamax::kBeta1, betas[0]);
    out->Set(Adamax::kOneMinusBeta1, 1 - betas[0]);
    out->Set(Adamax::kBeta2, betas[1]);
    out->Set(Adamax::kEps, group.Number("eps"));
    out->Set(Adamax::kMinusStepSize,
             -(group.Number("lr") / (1 - std::pow(betas[0], static_cast<double>(step)))));
    out->Set(Adamax::kWeightDecay, group.Number("weight_decay"));
  }
};

OPTSHARD_REGISTER_RULE(AdamaxRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

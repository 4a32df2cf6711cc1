// Lion, as its paper has it (algorithm 2).

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct Lion {
  enum Slot { kExpAvg };
  using Variants = VariantsBySlots<SlotSetOf(kExpAvg)>;
  enum Coefficient {
    kSign,  // -1 where the objective is maximized
    kMinusLr,
    kBeta1,
    kOneMinusBeta1,
    kBeta2,
    kOneMinusBeta2,
    kShrink,  // 1 - lr * weight_decay
  };

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
                                     Slots& slots) {
    E& exp_avg = slots[kExpAvg];
    gradient = c[kSign] * gradient;
    const E direction = c[kBeta1] * exp_avg + c[kOneMinusBeta1] * gradient;
    // Its sign, NaN of NaN.
    const E sign =
        Select(direction > E(0), E(1),
               Select(E(0) > direction, E(-1), Select(direction == direction, E(0), direction)));
    parameter = c[kShrink] * parameter + c[kMinusLr] * sign;
    exp_avg = Lerp(exp_avg, gradient, c.number(kOneMinusBeta2), c.number(kBeta2));
  }
};

OPTSHARD_END_FORMULA(Lion);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec LionSpec() {
  RuleSpec spec;
  spec.name = "lion";
  spec.doc = "Lion: steps of one size in the direction of a running average's sign";
  spec.source = "https://arxiv.org/abs/2302.06675, algorithm 2";
  spec.options = {
      options::NonNegative("lr", 1e-4, "learning rate"),
      options::DecayRates("betas", {0.9, 0.99}, "decay for the direction, and of the average"),
      options::NonNegative("weight_decay", 0, "share of lr by which the parameter shrinks"),
      options::Flag("maximize", false, "ascend instead of descend"),
  };
  spec.slots = {{"exp_avg", "running average of the gradient", "", "", EightBit::kSigned}};
  return spec;
}

class LionRule final : public ElementWiseRule {
 public:
  LionRule() : ElementWiseRule(LionSpec(), DriversOf<Lion>()) {}

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber, Coefficients* out) const override {
    const Numbers betas = group.List("betas");
    out->Set(Lion::kSign, group.Flag("maximize") ? -1 : 1);
    out->Set(Lion::kMinusLr, -group.Number("lr"));
    out->Set(Lion::kBeta1, betas[0]);
    out->Set(Lion::kOneMinusBeta1, 1 - betas[0]);
    out->Set(Lion::kBeta2, betas[1]);
    out->Set(Lion::kOneMinusBeta2, 1 - betas[1]);
    out->Set(Lion::kShrink, 1 - group.Number("lr") * group.Number("weight_decay"));
  }
};

OPTSHARD_REGISTER_RULE(LionRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

// An update rule of one's own, in one's own folder: Signum, which steps by the sign of the
// momentum.

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct Signum {
  enum Slot { kMomentumBuffer };
  using Variants = VariantsBySlots<SlotSetOf(kMomentumBuffer)>;
  enum Coefficient {
    kMinusLr,
    kMomentum,
    kOneMinusMomentum,
    kShrink,  // 1 - lr * weight_decay
  };

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
                                     Slots& slots) {
    E& momentum = slots[kMomentumBuffer];
    momentum = c[kMomentum] * momentum + c[kOneMinusMomentum] * gradient;
    // Zero and NaN have none.
    const E sign = Select(momentum > E(0), E(1), Select(E(0) > momentum, E(-1), momentum));
    parameter = c[kShrink] * parameter + c[kMinusLr] * sign;
  }
};

OPTSHARD_END_FORMULA(Signum);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec SignumSpec() {
  RuleSpec spec;
  spec.name = "signum";
  spec.doc = "Signum: steps of one size in the direction of the momentum's sign";
  spec.source = "https://arxiv.org/abs/1802.04434, algorithm 2";
  spec.options = {
      options::NonNegative("lr", 1e-4, "learning rate"),
      options::NonNegative("momentum", 0.9, "decay of the average of the gradient"),
      options::NonNegative("weight_decay", 0, "share of lr by which the parameter shrinks"),
  };
  spec.slots = {{"momentum_buffer", "running average of the gradient"}};
  return spec;
}

class SignumRule final : public ElementWiseRule {
 public:
  SignumRule() : ElementWiseRule(SignumSpec(), DriversOf<Signum>()) {}

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber, Coefficients* out) const override {
    const double lr = group.Number("lr");
    const double momentum = group.Number("momentum");
    out->Set(Signum::kMinusLr, -lr);
    out->Set(Signum::kMomentum, momentum);
    out->Set(Signum::kOneMinusMomentum, 1 - momentum);
    out->Set(Signum::kShrink, 1 - lr * group.Number("weight_decay"));
  }
};

OPTSHARD_REGISTER_RULE(SignumRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

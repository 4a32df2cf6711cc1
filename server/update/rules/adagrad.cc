// Adagrad, with the arithmetic of torch.optim.Adagrad.

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct Adagrad {
  enum Slot { kSum };
  using Variants = VariantsBySlots<SlotSetOf(kSum)>;
  enum Coefficient {
    kSign,           // -1 where the objective is maximized
    kMinusStepSize,  // -lr / (1 + (step - 1) * lr_decay)
    kWeightDecay,
    kEps,
  };

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
                                     Slots& slots) {
    E& sum = slots[kSum];
    gradient = c[kSign] * gradient;
    if (c.number(kWeightDecay) != 0) gradient = gradient + c[kWeightDecay] * parameter;
    sum = sum + gradient * gradient;
    parameter = parameter + c[kMinusStepSize] * gradient / (Sqrt(sum) + c[kEps]);
  }
};

OPTSHARD_END_FORMULA(Adagrad);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec AdagradSpec() {
  RuleSpec spec;
  spec.name = "adagrad";
  spec.doc = "Adagrad: steps scaled by the sum of the squares of all gradients";
  spec.source = "https://docs.pytorch.org/docs/2.11/generated/torch.optim.Adagrad.html";
  spec.exports_step = true;
  // A gradient of zeros changes nothing, so that rows which are not there stay as they are.
  spec.sparse_gradients = SparseGradients::kToo;
  spec.options = {
      options::NonNegative("lr", 1e-2, "learning rate"),
      options::NonNegative("lr_decay", 0, "share by which each step shortens the next ones"),
      options::NonNegative("weight_decay", 0, "L2 penalty, added to the gradient"),
      options::NonNegative("initial_accumulator_value", 0, "what the sum of squares begins with"),
      options::NonNegative("eps", 1e-10, "added to the denominator"),
      options::Flag("maximize", false, "ascend instead of descend"),
  };
  spec.slots = {
      {"sum", "sum of the squares of the gradients", "", "initial_accumulator_value"},
  };
  return spec;
}

class AdagradRule final : public ElementWiseRule {
 public:
  AdagradRule() : ElementWiseRule(AdagradSpec(), DriversOf<Adagrad>()) {}

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber step,
                       Coefficients* out) const override {
    const double decay = 1 + static_cast<double>(step - 1) * group.Number("lr_decay");
    out->Set(Adagrad::kSign, group.Flag("maximize") ? -1 : 1);
    out->Set(Adagrad::kMinusStepSize, -(group.Number("lr") / decay));
    out->Set(Adagrad::kWeightDecay, group.Number("weight_decay"));
    out->Set(Adagrad::kEps, group.Number("eps"));
  }
};

OPTSHARD_REGISTER_RULE(AdagradRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

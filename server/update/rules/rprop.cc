// Rprop, with the arithmetic of torch.optim.Rprop.

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct Rprop {
  enum Slot { kPrev, kStepSize };
  using Variants = VariantsBySlots<SlotSetOf(kPrev, kStepSize)>;
  enum Coefficient {
    kSign,  // -1 where the objective is maximized
    kEtaMinus,
    kEtaPlus,
    kStepSizeMin,
    kStepSizeMax,
    kIsFirst,  // 1 in the parameter's first step
    kLr,
  };

  // Of two numbers, the one for positive values, zero or negative ones; NaN of NaN.
  template <class E>
  static OPTSHARD_FORMULA E BySign(E value, E positive, E zero, E negative) {
    return Select(value > E(0), positive,
                  Select(E(0) > value, negative, Select(value == value, zero, value)));
  }

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
                                     Slots& slots) {
    E& prev = slots[kPrev];
    E& step_size = slots[kStepSize];
    gradient = c[kSign] * gradient;
    const E turn = gradient * prev;
    // A scheduler may have changed lr since the slot was made.
    if (c.number(kIsFirst) == 1) step_size = c[kLr];
    step_size = Min(Max(step_size * BySign(turn, c[kEtaPlus], E(1), c[kEtaMinus]), c[kStepSizeMin]),
                    c[kStepSizeMax]);
    // Where the direction has turned, this step goes nowhere and the next one forgets it.
    prev = Select(E(0) > turn, E(0), gradient);
    parameter = parameter - BySign(prev, E(1), E(0), E(-1)) * step_size;
  }
};

OPTSHARD_END_FORMULA(Rprop);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec RpropSpec() {
  RuleSpec spec;
  spec.name = "rprop";
  spec.doc =
      "Rprop: each element's step grows while its gradient keeps its sign; for whole batches";
  spec.source = "https://docs.pytorch.org/docs/2.11/generated/torch.optim.Rprop.html";
  spec.exports_step = true;
  spec.options = {
      options::NonNegative("lr", 1e-2, "size of the first step of each element"),
      options::Around1("etas", {0.5, 1.2}, "factors of a step whose gradient turned, or did not"),
      options::Ascending("step_sizes", {1e-6, 50}, "smallest and largest step"),
      options::Flag("maximize", false, "ascend instead of descend"),
  };
  spec.slots = {
      {"prev", "the gradient before, 0 where it turned"},
      {"step_size", "size of the next step", "", "lr"},
  };
  return spec;
}

class RpropRule final : public ElementWiseRule {
 public:
  RpropRule() : ElementWiseRule(RpropSpec(), DriversOf<Rprop>()) {}

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber step,
                       Coefficients* out) const override {
    out->Set(Rprop::kSign, group.Flag("maximize") ? -1 : 1);
    out->Set(Rprop::kEtaMinus, group.List("etas")[0]);
    out->Set(Rprop::kEtaPlus, group.List("etas")[1]);
    out->Set(Rprop::kStepSizeMin, group.List("step_sizes")[0]);
    out->Set(Rprop::kStepSizeMax, group.List("step_sizes")[1]);
    out->Set(Rprop::kIsFirst, step == 1 ? 1 : 0);
    out->Set(Rprop::kLr, group.Number("lr"));
  }
};

OPTSHARD_REGISTER_RULE(RpropRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

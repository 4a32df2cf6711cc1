// Averaged stochastic gradient descent, with the arithmetic of torch.optim.ASGD.

#include <algorithm>
#include <cmath>

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct Asgd {
  enum Slot { kAx };
  using Variants = VariantsBySlots<SlotSetOf(kAx)>;
  enum Coefficient {
    kSign,  // -1 where the objective is maximized
    kWeightDecay,
    kShrink,  // 1 - lambd * eta
    kMinusEta,
    kMu,
  };

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
                                     Slots& slots) {
    gradient = c[kSign] * gradient;
    if (c.number(kWeightDecay) != 0) gradient = gradient + c[kWeightDecay] * parameter;
    parameter = c[kShrink] * parameter + c[kMinusEta] * gradient;
    E& ax = slots[kAx];
    ax = c.number(kMu) == 1 ? parameter : ax + (parameter - ax) * c[kMu];
  }
};

OPTSHARD_END_FORMULA(Asgd);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

// Indices in RuleSpec::scalar_slots.
enum ScalarSlot { kEta, kMu };

RuleSpec AsgdSpec() {
  RuleSpec spec;
  spec.name = "asgd";
  spec.doc = "averaged stochastic gradient descent: the average of the parameter is the slot ax";
  spec.source = "https://docs.pytorch.org/docs/2.11/generated/torch.optim.ASGD.html";
  spec.exports_step = true;
  spec.options = {
      options::NonNegative("lr", 1e-2, "learning rate"),
      options::Finite("lambd", 1e-4, "decay of the parameter in each step, as a share of eta"),
      options::Finite("alpha", 0.75, "power by which eta falls"),
      options::Finite("t0", 1e6, "step at which averaging begins"),
      options::NonNegative("weight_decay", 0, "L2 penalty, added to the gradient"),
      options::Flag("maximize", false, "ascend instead of descend"),
  };
  spec.slots = {{"ax", "average of the parameter"}};
  spec.scalar_slots = {{"eta", "learning rate of the next step", "lr"},
                       {"mu", "weight of the next step in the average", "", 1}};
  return spec;
}

class AsgdRule final : public ElementWiseRule {
 public:
  AsgdRule() : ElementWiseRule(AsgdSpec(), DriversOf<Asgd>()) {}

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber step,
                       Coefficients* out) const override {
    const double lr = group.Number("lr");
    const double lambd = group.Number("lambd");
    const double count = static_cast<double>(step);
    double& eta = out->scalar_slots[kEta];
    double& mu = out->scalar_slots[kMu];
    if (step == 1) eta = lr;  // what a scheduler has made of it before the first step
    out->Set(Asgd::kSign, group.Flag("maximize") ? -1 : 1);
    out->Set(Asgd::kWeightDecay, group.Number("weight_decay"));
    out->Set(Asgd::kShrink, 1 - lambd * eta);
    out->Set(Asgd::kMinusEta, -eta);
    out->Set(Asgd::kMu, mu);
    eta = lr / std::pow(1 + lambd * lr * count, group.Number("alpha"));
    mu = 1 / std::max(1.0, count - group.Number("t0"));
  }
};

OPTSHARD_REGISTER_RULE(AsgdRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

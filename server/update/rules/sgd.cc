// Stochastic gradient descent, with and without momentum, with the arithmetic of torch.optim.SGD.

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct Sgd {
  enum Slot { kMomentumBuffer };
  using Variants = VariantsBySlots<0, SlotSetOf(kMomentumBuffer)>;
  enum Coefficient {
    kSign,  // -1 where the objective is maximized
    kMinusLr,
    kWeightDecay,
    kMomentum,
    kMomentumRest,  // what rounding to float took from it
    kOneMinusDampening,
    kOneMinusDampeningRest,
    kIsFirst,   // 1 at the parameter's first step, otherwise 0
    kNesterov,  // 1 or 0
  };

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
                                     Slots& slots) {
    gradient = c[kSign] * gradient;
    if (c.number(kWeightDecay) != 0) gradient = gradient + c[kWeightDecay] * parameter;
    E direction = gradient;
    if constexpr (Slots::Has(kMomentumBuffer)) {
      E& momentum_buffer = slots[kMomentumBuffer];
      // Over many steps a rounded momentum errs more than all other roundings together: 0.9f is too
      // small by 3e-8, which a long sum multiplies by ten. So its rest takes part.
      const E rest = c[kMomentumRest] * momentum_buffer + c[kOneMinusDampeningRest] * direction;
      const E later = c[kMomentum] * momentum_buffer + (c[kOneMinusDampening] * direction + rest);
      // The buffer starts as the first gradient, undampened.
      momentum_buffer = c.number(kIsFirst) == 1 ? direction : later;
      if (c.number(kNesterov) == 1) {
        const E ahead = c[kMomentum] * momentum_buffer + c[kMomentumRest] * momentum_buffer;
        direction = direction + ahead;
      } else {
        direction = momentum_buffer;
      }
    }
    parameter = parameter + c[kMinusLr] * direction;
  }
};

OPTSHARD_END_FORMULA(Sgd);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec SgdSpec() {
  RuleSpec spec;
  spec.name = "sgd";
  spec.doc = "stochastic gradient descent, optionally with momentum";
  spec.source = "https://docs.pytorch.org/docs/2.11/generated/torch.optim.SGD.html";
  spec.sparse_gradients = SparseGradients::kToo;
  spec.options = {
      options::NonNegative("lr", 1e-3, "learning rate"),
      options::NonNegative("momentum", 0, "share of the last direction that is kept"),
      options::Finite("dampening", 0, "share of the gradient that momentum leaves out"),
      options::NonNegative("weight_decay", 0, "L2 penalty, added to the gradient"),
      options::Flag("nesterov", false, "look one momentum step ahead"),
      options::Flag("maximize", false, "ascend instead of descend"),
  };
  spec.slots = {
      {"momentum_buffer", "running sum of the gradients", "momentum", "", EightBit::kSigned}};
  return spec;
}

class SgdRule final : public ElementWiseRule {
 public:
  SgdRule() : ElementWiseRule(SgdSpec(), DriversOf<Sgd>()) {}

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber step,
                       Coefficients* out) const override {
    out->Set(Sgd::kSign, group.Flag("maximize") ? -1 : 1);
    out->Set(Sgd::kMinusLr, -group.Number("lr"));
    out->Set(Sgd::kWeightDecay, group.Number("weight_decay"));
    out->SetWithRest(Sgd::kMomentum, Sgd::kMomentumRest, group.Number("momentum"));
    out->SetWithRest(Sgd::kOneMinusDampening, Sgd::kOneMinusDampeningRest,
                     1 - group.Number("dampening"));
    out->Set(Sgd::kIsFirst, step == 1 ? 1 : 0);
    out->Set(Sgd::kNesterov, group.Flag("nesterov") ? 1 : 0);
  }

  bool ChangesOtherRows(const Hyperparameters& group) const override {
    return group.Number("momentum") != 0;
  }

  absl::Status ValidateTogether(const Hyperparameters& group) const override {
    if (!group.Flag("nesterov") ||
        (group.Number("momentum") > 0 && group.Number("dampening") == 0)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "option \"nesterov\" is true; it needs \"momentum\" > 0, which is " +
        ToString(*group.Find("momentum")) + ", and \"dampening\" = 0, which is " +
        ToString(*group.Find("dampening")));
  }
};

OPTSHARD_REGISTER_RULE(SgdRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

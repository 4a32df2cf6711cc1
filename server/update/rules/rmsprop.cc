// RMSprop, with and without momentum, centered or not, with the arithmetic of torch.optim.RMSprop.

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct Rmsprop {
  enum Slot { kSquareAvg, kMomentumBuffer, kGradAvg };
  using Variants = VariantsBySlots<SlotSetOf(kSquareAvg), SlotSetOf(kSquareAvg, kMomentumBuffer),
                                   SlotSetOf(kSquareAvg, kGradAvg),
                                   SlotSetOf(kSquareAvg, kMomentumBuffer, kGradAvg)>;
  enum Coefficient {
    kSign,  // -1 where the objective is maximized
    kMinusLr,
    kWeightDecay,
    kAlpha,
    kAlphaRest,  // what rounding to float took from it
    kOneMinusAlpha,
    kOneMinusAlphaRest,
    kEps,
    kMomentum,
  };

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
                                     Slots& slots) {
    E& square_avg = slots[kSquareAvg];
    gradient = c[kSign] * gradient;
    if (c.number(kWeightDecay) != 0) gradient = gradient + c[kWeightDecay] * parameter;
    // The rests of the coefficients take part: centered, what is left of the difference of two
    // averages would magnify the error of rounded ones. Lerp has none to speak of.
    const E square = gradient * gradient;
    const E rest = c[kAlphaRest] * square_avg + c[kOneMinusAlphaRest] * square;
    square_avg = c[kAlpha] * square_avg + (c[kOneMinusAlpha] * square + rest);
    E variance = square_avg;
    if constexpr (Slots::Has(kGradAvg)) {
      E& grad_avg = slots[kGradAvg];
      grad_avg = Lerp(grad_avg, gradient, c.number(kOneMinusAlpha), c.number(kAlpha));
      variance = square_avg - grad_avg * grad_avg;
    }
    const E denominator = Sqrt(variance) + c[kEps];
    if constexpr (Slots::Has(kMomentumBuffer)) {
      E& momentum_buffer = slots[kMomentumBuffer];
      momentum_buffer = c[kMomentum] * momentum_buffer + gradient / denominator;
      parameter = parameter + c[kMinusLr] * momentum_buffer;
    } else {
      parameter = parameter + c[kMinusLr] * gradient / denominator;
    }
  }
};

OPTSHARD_END_FORMULA(Rmsprop);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec RmspropSpec() {
  RuleSpec spec;
  spec.name = "rmsprop";
  spec.doc = "RMSprop: steps scaled by a running average of the gradient's square";
  spec.source = "https://docs.pytorch.org/docs/2.11/generated/torch.optim.RMSprop.html";
  spec.exports_step = true;
  spec.options = {
      options::NonNegative("lr", 1e-2, "learning rate"),
      options::NonNegative("alpha", 0.99, "decay of the averages"),
      options::NonNegative("eps", 1e-8, "added to the denominator"),
      options::NonNegative("weight_decay", 0, "L2 penalty, added to the gradient"),
      options::NonNegative("momentum", 0, "share of the last direction that is kept"),
      options::Flag("centered", false, "divide by the estimated variance of the gradient"),
      options::Flag("maximize", false, "ascend instead of descend"),
  };
  spec.slots = {
      {"square_avg", "running average of the gradient's square"},
      {"momentum_buffer", "running sum of the scaled gradients", "momentum"},
      {"grad_avg", "running average of the gradient", "centered"},
  };
  return spec;
}

class RmspropRule final : public ElementWiseRule {
 public:
  RmspropRule() : ElementWiseRule(RmspropSpec(), DriversOf<Rmsprop>()) {}

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber, Coefficients* out) const override {
    out->Set(Rmsprop::kSign, group.Flag("maximize") ? -1 : 1);
    out->Set(Rmsprop::kMinusLr, -group.Number("lr"));
    out->Set(Rmsprop::kWeightDecay, group.Number("weight_decay"));
    out->SetWithRest(Rmsprop::kAlpha, Rmsprop::kAlphaRest, group.Number("alpha"));
    out->SetWithRest(Rmsprop::kOneMinusAlpha, Rmsprop::kOneMinusAlphaRest,
                     1 - group.Number("alpha"));
    out->Set(Rmsprop::kEps, group.Number("eps"));
    out->Set(Rmsprop::kMomentum, group.Number("momentum"));
  }
};

OPTSHARD_REGISTER_RULE(RmspropRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

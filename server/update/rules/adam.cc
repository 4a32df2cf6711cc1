// Adam and AdamW, with the arithmetic of torch.optim: one formula, two ways to decay weights.

#include <cmath>

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct Adam {
  enum Slot { kExpAvg, kExpAvgSq, kMaxExpAvgSq };
  using Variants =
      VariantsBySlots<SlotSetOf(kExpAvg, kExpAvgSq), SlotSetOf(kExpAvg, kExpAvgSq, kMaxExpAvgSq)>;
  enum Coefficient {
    kSign,  // -1 where the objective is maximized
    kBeta1,
    kOneMinusBeta1,
    kBeta2,
    kOneMinusBeta2,
    kSqrtBiasCorrection2,
    kEps,
    kMinusStepSize,  // -lr / (1 - beta1^step)
    kL2,             // Adam: weight_decay, added to the gradient
    kShrink,         // AdamW: 1 - lr * weight_decay, applied to the parameter
  };

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
                                     Slots& slots) {
    E& exp_avg = slots[kExpAvg];
    E& exp_avg_sq = slots[kExpAvgSq];
    gradient = c[kSign] * gradient;
    if (c.number(kL2) != 0) gradient = gradient + c[kL2] * parameter;
    exp_avg = Lerp(exp_avg, gradient, c.number(kOneMinusBeta1), c.number(kBeta1));
    exp_avg_sq = c[kBeta2] * exp_avg_sq + c[kOneMinusBeta2] * gradient * gradient;
    E second_moment = exp_avg_sq;
    if constexpr (Slots::Has(kMaxExpAvgSq)) {
      second_moment = slots[kMaxExpAvgSq] = Max(slots[kMaxExpAvgSq], exp_avg_sq);
    }
    const E denominator = RootOver(second_moment, c[kSqrtBiasCorrection2]) + c[kEps];
    parameter = c[kShrink] * parameter + c[kMinusStepSize] * exp_avg / denominator;
  }
};

OPTSHARD_END_FORMULA(Adam);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec SpecOf(const char* name, const char* doc, const char* source, double weight_decay,
                const char* weight_decay_doc) {
  RuleSpec spec;
  spec.name = name;
  spec.doc = doc;
  spec.source = source;
  spec.exports_step = true;
  spec.options = {
      options::NonNegative("lr", 1e-3, "learning rate"),
      options::DecayRates("betas", {0.9, 0.999}, "decay of the averages of gradient and square"),
      options::NonNegative("eps", 1e-8, "added to the denominator"),
      options::NonNegative("weight_decay", weight_decay, weight_decay_doc),
      options::Flag("amsgrad", false, "divide by the largest average of squares so far"),
      options::Flag("maximize", false, "ascend instead of descend"),
  };
  spec.slots = {
      {"exp_avg", "running average of the gradient", "", "", EightBit::kSigned},
      {"exp_avg_sq", "running average of its square", "", "", EightBit::kNonNegative},
      {"max_exp_avg_sq", "largest value of exp_avg_sq so far", "amsgrad", "",
       EightBit::kNonNegative},
  };
  return spec;
}

class AdamRule : public ElementWiseRule {
 public:
  AdamRule()
      : AdamRule(SpecOf("adam", "Adam: steps scaled by running averages of gradient and square",
                        "https://docs.pytorch.org/docs/2.11/generated/torch.optim.Adam.html", 0,
                        "L2 penalty, added to the gradient"),
                 /*decoupled=*/false) {}

 protected:
  AdamRule(RuleSpec spec, bool decoupled)
      : ElementWiseRule(std::move(spec), DriversOf<Adam>()), decoupled_(decoupled) {}

  void SetCoefficients(const Hyperparameters& group, StepNumber step,
                       Coefficients* out) const override {
    const double lr = group.Number("lr");
    const double decay = group.Number("weight_decay");
    const Numbers betas = group.List("betas");
    const double count = static_cast<double>(step);
    out->Set(Adam::kSign, group.Flag("maximize") ? -1 : 1);
    out->Set(Adam::kBeta1, betas[0]);
    out->Set(Adam::kOneMinusBeta1, 1 - betas[0]);
    out->Set(Adam::kBeta2, betas[1]);
    out->Set(Adam::kOneMinusBeta2, 1 - betas[1]);
    out->Set(Adam::kSqrtBiasCorrection2, std::sqrt(1 - std::pow(betas[1], count)));
    out->Set(Adam::kEps, group.Number("eps"));
    out->Set(Adam::kMinusStepSize, -(lr / (1 - std::pow(betas[0], count))));
    out->Set(Adam::kL2, decoupled_ ? 0 : decay);
    out->Set(Adam::kShrink, decoupled_ ? 1 - lr * decay : 1);
  }

 private:
  const bool decoupled_;
};

class AdamWRule final : public AdamRule {
 public:
  AdamWRule()
      : AdamRule(SpecOf("adamw", "Adam with weight decay apart from the gradient",
                        "https://docs.pytorch.org/docs/2.11/generated/torch.optim.AdamW.html", 1e-2,
                        "share of lr by which the parameter shrinks"),
                 /*decoupled=*/true) {}
};

OPTSHARD_REGISTER_RULE(AdamRule);
OPTSHARD_REGISTER_RULE(AdamWRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

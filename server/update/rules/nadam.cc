// NAdam, with the arithmetic of torch.optim.NAdam.

#include <cmath>

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct NAdam {
  enum Slot { kExpAvg, kExpAvgSq };
  using Variants = VariantsBySlots<SlotSetOf(kExpAvg, kExpAvgSq)>;
  enum Coefficient {
    kSign,  // -1 where the objective is maximized
    kBeta1,
    kOneMinusBeta1,
    kBeta2,
    kOneMinusBeta2,
    kSqrtBiasCorrection2,
    kEps,
    kOfGradient,  // -lr * (1 - mu) / (1 - mu_product)
    kOfAverage,   // -lr * mu_next / (1 - mu_product * mu_next)
    kL2,          // weight_decay, added to the gradient
    kShrink,      // decoupled_weight_decay: 1 - lr * weight_decay, applied to the parameter
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
    const E denominator = RootOver(exp_avg_sq, c[kSqrtBiasCorrection2]) + c[kEps];
    parameter = c[kShrink] * parameter + c[kOfGradient] * gradient / denominator;
    parameter = parameter + c[kOfAverage] * exp_avg / denominator;
  }
};

OPTSHARD_END_FORMULA(NAdam);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec NAdamSpec() {
  RuleSpec spec;
  spec.name = "nadam";
  spec.doc = "NAdam: Adam with Nesterov's momentum";
  spec.source = "https://docs.pytorch.org/docs/2.11/generated/torch.optim.NAdam.html";
  spec.exports_step = true;
  spec.options = {
      options::NonNegative("lr", 2e-3, "learning rate"),
      options::DecayRates("betas", {0.9, 0.999}, "decay of the averages of gradient and square"),
      options::NonNegative("eps", 1e-8, "added to the denominator"),
      options::NonNegative("weight_decay", 0, "L2 penalty, or as decoupled_weight_decay says"),
      options::NonNegative("momentum_decay", 4e-3, "how fast the momentum grows to betas[0]"),
      options::Flag("decoupled_weight_decay", false,
                    "weight_decay shrinks the parameter, as in AdamW"),
      options::Flag("maximize", false, "ascend instead of descend"),
  };
  spec.slots = {
      {"exp_avg", "running average of the gradient"},
      {"exp_avg_sq", "running average of its square"},
  };
  spec.scalar_slots = {{"mu_product", "product of the momenta so far", "", 1}};
  return spec;
}

class NAdamRule final : public ElementWiseRule {
 public:
  NAdamRule() : ElementWiseRule(NAdamSpec(), DriversOf<NAdam>()) {}

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber step,
                       Coefficients* out) const override {
    const double lr = group.Number("lr");
    const double decay = group.Number("weight_decay");
    const bool decoupled = group.Flag("decoupled_weight_decay");
    const Numbers betas = group.List("betas");
    const double count = static_cast<double>(step);
    const auto momentum = [&](double at) {
      return betas[0] * (1 - 0.5 * std::pow(0.96, at * group.Number("momentum_decay")));
    };
    const double mu = momentum(count);
    const double mu_next = momentum(count + 1);
    const double mu_product = out->scalar_slots[0] *= mu;
    out->Set(NAdam::kSign, group.Flag("maximize") ? -1 : 1);
    out->Set(NAdam::kBeta1, betas[0]);
    out->Set(NAdam::kOneMinusBeta1, 1 - betas[0]);
    out->Set(NAdam::kBeta2, betas[1]);
    out->Set(NAdam::kOneMinusBeta2, 1 - betas[1]);
    out->Set(NAdam::kSqrtBiasCorrection2, std::sqrt(1 - std::pow(betas[1], count)));
    out->Set(NAdam::kEps, group.Number("eps"));
    out->Set(NAdam::kOfGradient, -(lr * (1 - mu) / (1 - mu_product)));
    out->Set(NAdam::kOfAverage, -(lr * mu_next / (1 - mu_product * mu_next)));
    out->Set(NAdam::kL2, decoupled ? 0 : decay);
    out->Set(NAdam::kShrink, decoupled ? 1 - lr * decay : 1);
  }
};

OPTSHARD_REGISTER_RULE(NAdamRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

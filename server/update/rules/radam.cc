// RAdam, with the arithmetic of torch.optim.RAdam.

#include <cmath>

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct RAdam {
  enum Slot { kExpAvg, kExpAvgSq };
  using Variants = VariantsBySlots<SlotSetOf(kExpAvg, kExpAvgSq)>;
  enum Coefficient {
    kSign,  // -1 where the objective is maximized
    kBeta1,
    kOneMinusBeta1,
    kBeta2,
    kOneMinusBeta2,
    kEps,
    kIsRectified,    // 1 once the variance of the average square can be told, otherwise 0
    kMinusStepSize,  // -lr / (1 - beta1^step), rectified: times sqrt(1 - beta2^step) * rect
    kL2,             // weight_decay, added to the gradient
    kShrink,         // decoupled_weight_decay: 1 - lr * weight_decay, applied to the parameter
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
    E step = c[kMinusStepSize] * exp_avg;
    if (c.number(kIsRectified) == 1) step = step / (Sqrt(exp_avg_sq) + c[kEps]);
    parameter = c[kShrink] * parameter + step;
  }
};

OPTSHARD_END_FORMULA(RAdam);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec RAdamSpec() {
  RuleSpec spec;
  spec.name = "radam";
  spec.doc = "RAdam: Adam that takes plain steps until its average square can be relied on";
  spec.source = "https://docs.pytorch.org/docs/2.11/generated/torch.optim.RAdam.html";
  spec.exports_step = true;
  spec.options = {
      options::NonNegative("lr", 1e-3, "learning rate"),
      options::DecayRates("betas", {0.9, 0.999}, "decay of the averages of gradient and square"),
      options::NonNegative("eps", 1e-8, "added to the denominator"),
      options::NonNegative("weight_decay", 0, "L2 penalty, or as decoupled_weight_decay says"),
      options::Flag("decoupled_weight_decay", false,
                    "weight_decay shrinks the parameter, as in AdamW"),
      options::Flag("maximize", false, "ascend instead of descend"),
  };
  spec.slots = {
      {"exp_avg", "running average of the gradient"},
      {"exp_avg_sq", "running average of its square"},
  };
  return spec;
}

class RAdamRule final : public ElementWiseRule {
 public:
  RAdamRule() : ElementWiseRule(RAdamSpec(), DriversOf<RAdam>()) {}

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber step,
                       Coefficients* out) const override {
    const double lr = group.Number("lr");
    const double decay = group.Number("weight_decay");
    const bool decoupled = group.Flag("decoupled_weight_decay");
    const Numbers betas = group.List("betas");
    const double count = static_cast<double>(step);
    // The length of the average square's memory: in the long run, and so far (the paper's rho).
    const double power = std::pow(betas[1], count);
    const double longest = 2 / (1 - betas[1]) - 1;
    const double length = longest - 2 * count * power / (1 - power);
    const bool rectified = length > 5;
    double step_size = lr / (1 - std::pow(betas[0], count));
    if (rectified) {
      step_size *= std::sqrt(1 - power) * std::sqrt((length - 4) * (length - 2) * longest /
                                                    ((longest - 4) * (longest - 2) * length));
    }
    out->Set(RAdam::kSign, group.Flag("maximize") ? -1 : 1);
    out->Set(RAdam::kBeta1, betas[0]);
    out->Set(RAdam::kOneMinusBeta1, 1 - betas[0]);
    out->Set(RAdam::kBeta2, betas[1]);
    out->Set(RAdam::kOneMinusBeta2, 1 - betas[1]);
    out->Set(RAdam::kEps, group.Number("eps"));
    out->Set(RAdam::kIsRectified, rectified ? 1 : 0);
    out->Set(RAdam::kMinusStepSize, -step_size);
    out->Set(RAdam::kL2, decoupled ? 0 : decay);
    out->Set(RAdam::kShrink, decoupled ? 1 - lr * decay : 1);
  }
};

OPTSHARD_REGISTER_RULE(RAdamRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

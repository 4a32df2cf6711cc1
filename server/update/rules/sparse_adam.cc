// SparseAdam, with the arithmetic of torch.optim: Adam for gradients that have some rows only.

#include <cmath>

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct SparseAdam {
  enum Slot { kExpAvg, kExpAvgSq };
  using Variants = VariantsBySlots<SlotSetOf(kExpAvg, kExpAvgSq)>;
  enum Coefficient {
    kSign,  // -1 where the objective is maximized
    kOneMinusBeta1,
    kOneMinusBeta2,
    kEps,
    kMinusStepSize,  // -lr * sqrt(1 - beta2^step) / (1 - beta1^step)
  };

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
                                     Slots& slots) {
    E& exp_avg = slots[kExpAvg];
    E& exp_avg_sq = slots[kExpAvgSq];
    gradient = c[kSign] * gradient;
    exp_avg = exp_avg + (gradient - exp_avg) * c[kOneMinusBeta1];
    exp_avg_sq = exp_avg_sq + (gradient * gradient - exp_avg_sq) * c[kOneMinusBeta2];
    parameter = parameter + c[kMinusStepSize] * (exp_avg / (Sqrt(exp_avg_sq) + c[kEps]));
  }
};

OPTSHARD_END_FORMULA(SparseAdam);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec SparseAdamSpec() {
  RuleSpec spec;
  spec.name = "sparse_adam";
  spec.doc = "Adam for sparse gradients: updates the rows that the gradient has, and their slots";
  spec.source = "https://docs.pytorch.org/docs/2.11/generated/torch.optim.SparseAdam.html";
  spec.exports_step = true;
  spec.sparse_gradients = SparseGradients::kOnly;
  spec.options = {
      options::Positive("lr", 1e-3, "learning rate"),
      options::DecayRates("betas", {0.9, 0.999}, "decay of the averages of gradient and square"),
      options::Positive("eps", 1e-8, "added to the denominator"),
      options::Flag("maximize", false, "ascend instead of descend"),
  };
  // Rows do not begin where blocks of 8-bit codes do.
  spec.slots = {{"exp_avg", "running average of the gradient"},
                {"exp_avg_sq", "running average of its square"}};
  return spec;
}

class SparseAdamRule final : public ElementWiseRule {
 public:
  SparseAdamRule() : ElementWiseRule(SparseAdamSpec(), DriversOf<SparseAdam>()) {}

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber step,
                       Coefficients* out) const override {
    const Numbers betas = group.List("betas");
    const double count = static_cast<double>(step);
    const double correction1 = 1 - std::pow(betas[0], count);
    const double correction2 = 1 - std::pow(betas[1], count);
    out->Set(SparseAdam::kSign, group.Flag("maximize") ? -1 : 1);
    out->Set(SparseAdam::kOneMinusBeta1, 1 - betas[0]);
    out->Set(SparseAdam::kOneMinusBeta2, 1 - betas[1]);
    out->Set(SparseAdam::kEps, group.Number("eps"));
    out->Set(SparseAdam::kMinusStepSize,
             -(group.Number("lr") * std::sqrt(correction2) / correction1));
  }
};

OPTSHARD_REGISTER_RULE(SparseAdamRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

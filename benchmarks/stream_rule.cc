#include "benchmarks/stream_rule.h"

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct Stream {
  enum Slot { kExpAvg, kExpAvgSq };
  using Variants = VariantsBySlots<SlotSetOf(kExpAvg, kExpAvgSq)>;

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>&, E gradient, E& parameter, Slots& slots) {
    slots[kExpAvg] = slots[kExpAvg] + gradient;
    slots[kExpAvgSq] = slots[kExpAvgSq] + gradient;
    parameter = parameter + gradient;
  }
};

OPTSHARD_END_FORMULA(Stream);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

class StreamRuleClass final : public ElementWiseRule {
 public:
  StreamRuleClass() : ElementWiseRule(Spec(), DriversOf<Stream>()) {}

 private:
  void SetCoefficients(const Hyperparameters&, StepNumber, Coefficients*) const override {}

  static RuleSpec Spec() {
    RuleSpec spec;
    spec.name = "stream";
    spec.doc = "adds the gradient to everything";
    spec.slots = {{"exp_avg", "as Adam's"}, {"exp_avg_sq", "as Adam's"}};
    return spec;
  }
};

}  // namespace

const UpdateRule& StreamRule() {
  static const auto* const rule = new StreamRuleClass();
  return *rule;
}

}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

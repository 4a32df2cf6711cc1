#include "benchmarks/stream_rule.h"

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct Stream {
  using Variants = VariantsBySlots<2>;

  template <class E, int N>
  static OPTSHARD_FORMULA void Apply(const Constants<E>&, E gradient, E& parameter,
                                     Slots<E, N>& slots) {
    for (int k = 0; k < N; ++k) slots[k] = slots[k] + gradient;
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

  std::vector<SlotSpec> Slots(const Hyperparameters&) const override {
    return {{"exp_avg", "as Adam's"}, {"exp_avg_sq", "as Adam's"}};
  }
  Coefficients Prepare(const Hyperparameters&, StepNumber) const override { return {}; }

 private:
  static RuleSpec Spec() {
    RuleSpec spec;
    spec.name = "stream";
    spec.doc = "adds the gradient to everything";
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

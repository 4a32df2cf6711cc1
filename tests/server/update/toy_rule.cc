// A rule that nobody needs, added as rules are added: by one file. Together with toy_rule_test.cc
// it shows that registration, validation, slots and all drivers follow; and it uses every operation
// that a formula may use.

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct Toy {
  using Variants = VariantsBySlots<1, 2>;
  enum Coefficient { kMinusLr, kBound };

  template <class E, int N>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
                                     Slots<E, N>& slots) {
    const E clipped = Max(E(0) - c[kBound], Min(gradient, c[kBound]));
    slots[0] = Lerp(slots[0], Abs(clipped), E(0.25f), E(0.75f));
    if constexpr (N == 2) slots[1] = Select(gradient > slots[1], gradient, slots[1]);
    parameter = parameter + c[kMinusLr] * clipped / (Sqrt(slots[0]) + E(1));
  }
};

OPTSHARD_END_FORMULA(Toy);

#if OPTSHARD_DECLARE_RULE
namespace optshard {
namespace {

RuleSpec ToySpec() {
  RuleSpec spec;
  spec.name = "toy";
  spec.doc = "clipped descent, scaled by the average size of the clipped gradient";
  spec.source = "tests/server/update/toy_rule.cc";
  spec.options = {
      options::NonNegative("lr", 0.5, "learning rate"),
      options::NonNegative("bound", 2, "gradients are clipped to [-bound, bound]"),
      options::Structural(options::Flag("keep_largest", false, "remember the largest gradient")),
  };
  return spec;
}

class ToyRule final : public ElementWiseRule {
 public:
  ToyRule() : ElementWiseRule(ToySpec(), DriversOf<Toy>()) {}

  std::vector<SlotSpec> Slots(const Hyperparameters& group) const override {
    std::vector<SlotSpec> slots = {{"size_avg", "average size of the clipped gradient"}};
    if (group.Flag("keep_largest")) slots.push_back({"largest", "largest gradient so far"});
    return slots;
  }

  Coefficients Prepare(const Hyperparameters& group, StepNumber) const override {
    Coefficients out;
    out.values[Toy::kMinusLr] = static_cast<float>(-group.Number("lr"));
    out.values[Toy::kBound] = static_cast<float>(group.Number("bound"));
    return out;
  }
};

OPTSHARD_REGISTER_RULE(ToyRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

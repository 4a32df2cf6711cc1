// A rule that nobody needs, added as rules are added: by one file. Together with toy_rule_test.cc
// it shows that registration, validation, slots and all drivers follow; and it uses every operation
// that a formula may use.

#include "server/update/define_rule-inl.h"

OPTSHARD_BEGIN_FORMULA();

struct Toy {
  enum Slot { kSizeAvg, kLargest };
  using Variants = VariantsBySlots<SlotSetOf(kSizeAvg), SlotSetOf(kSizeAvg, kLargest)>;
  enum Coefficient { kMinusLr, kBound, kNewWeight, kOldWeight, kUnit };

  template <class E, class Slots>
  static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
                                     Slots& slots) {
    E clipped = gradient;
    if (c.number(kBound) > 0) clipped = Max(E(0) - c[kBound], Min(gradient, c[kBound]));
    E& size_avg = slots[kSizeAvg];
    size_avg = Lerp(size_avg, Abs(clipped), c.number(kNewWeight), c.number(kOldWeight));
    if constexpr (Slots::Has(kLargest)) {
      slots[kLargest] = Select(gradient > slots[kLargest], gradient, slots[kLargest]);
    }
    parameter = parameter + c[kMinusLr] * clipped /
                                (RootOver(Sqrt(size_avg) * Sqrt(size_avg), c[kUnit]) + E(1));
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
      options::NonNegative("bound", 2, "gradients are clipped to [-bound, bound]; 0: they are not"),
      options::Flag("keep_largest", false, "remember the largest gradient"),
  };
  spec.slots = {
      {"size_avg", "average size of the clipped gradient"},
      {"largest", "largest gradient so far", "keep_largest"},
  };
  spec.scalar_slots = {{"lr_product", "product of the learning rates so far", "", 1}};
  return spec;
}

class ToyRule final : public ElementWiseRule {
 public:
  ToyRule() : ElementWiseRule(ToySpec(), DriversOf<Toy>()) {}

 protected:
  void SetCoefficients(const Hyperparameters& group, StepNumber, Coefficients* out) const override {
    out->scalar_slots[0] *= group.Number("lr");
    out->Set(Toy::kMinusLr, -group.Number("lr"));
    out->Set(Toy::kBound, group.Number("bound"));
    out->Set(Toy::kNewWeight, 0.25);
    out->Set(Toy::kOldWeight, 0.75);
    out->Set(Toy::kUnit, 1);
  }
};

OPTSHARD_REGISTER_RULE(ToyRule);

}  // namespace
}  // namespace optshard
#endif  // OPTSHARD_DECLARE_RULE

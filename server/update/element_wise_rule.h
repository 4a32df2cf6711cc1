// The part of an element-wise rule that its formula does not care about: choosing the driver.
#ifndef OPTSHARD_SERVER_UPDATE_ELEMENT_WISE_RULE_H_
#define OPTSHARD_SERVER_UPDATE_ELEMENT_WISE_RULE_H_

#include <cstdint>

#include "server/update/update_rule.h"

namespace optshard {

// Coefficients and a span in types that have no functions. Code compiled for one instruction set
// touches only such: an inline function of the standard library, compiled there, could be what the
// linker picks for everybody.
struct FormulaArguments {
  const float* coefficients = nullptr;
  float* parameter = nullptr;
  const float* gradient = nullptr;
  SlotSet slot_set = 0;
  float* slots[kMaxSlots] = {};  // those of slot_set
  int64_t elements = 0;

  // ReplicaSpans. Without replicas, `gradient` counts.
  const float* const* gradients = nullptr;
  int replicas = 0;
  const int* group_sizes = nullptr;
  int groups = 0;
  float* const* copies = nullptr;
  int copy_count = 0;
  int64_t first = 0;  // what belongs to parameter[i] is gradients[k][first + i]
};

// A formula, instantiated by every driver (define_rule-inl.h).
struct FormulaDrivers {
  bool (*has_variant)(SlotSet slots) = nullptr;
  void (*scalar)(const FormulaArguments& arguments) = nullptr;
  // Whole vectors only, by the best instruction set of this CPU; returns how many elements it did.
  int64_t (*simd)(const FormulaArguments& arguments) = nullptr;
};

// Base of the rules in server/update/rules.
class ElementWiseRule : public UpdateRule {
 public:
  ElementWiseRule(RuleSpec spec, const FormulaDrivers& drivers);

  const RuleSpec& spec() const final { return spec_; }
  void Update(DriverKind driver, const Coefficients& coefficients,
              const SpanUpdate& span) const final;

 private:
  const RuleSpec spec_;
  const FormulaDrivers drivers_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_ELEMENT_WISE_RULE_H_

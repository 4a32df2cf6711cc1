// The part of an element-wise rule that its formula does not care about: element types, and the
// choice of the driver.
#ifndef OPTSHARD_SERVER_UPDATE_ELEMENT_WISE_RULE_H_
#define OPTSHARD_SERVER_UPDATE_ELEMENT_WISE_RULE_H_

#include <cstdint>

#include "common/simd/tree_arrays.h"
#include "server/update/formula_limits.h"
#include "server/update/update_rule.h"

namespace optshard {

// Coefficients and a span in types that have no functions. Code compiled for one instruction set
// touches only such: an inline function of the standard library, compiled there, could be what the
// linker picks for everybody. T is what the formula computes in: float or double.
template <typename T>
struct FormulaArguments {
  T coefficients[kMaxCoefficients] = {};
  T* parameter = nullptr;
  const T* gradient = nullptr;
  SlotSet slot_set = 0;
  T* slots[kMaxSlots] = {};  // those of slot_set
  int64_t elements = 0;

  // ReplicaSpans, of arrays of T. Without replicas, `gradient` counts.
  TreeArrays gradients;
  void* const* copies = nullptr;  // each from gradients.first on
  int copy_count = 0;
  // Not null: the bfloat16 parameter, of which `parameter` is the master. The replicas' gradients,
  // of which there are some, and the copies are of bfloat16, too.
  uint16_t* rounded = nullptr;
};

// Returns how many elements it did: a vectorized one does whole vectors only.
template <typename T>
using FormulaDriver = int64_t (*)(const FormulaArguments<T>& arguments);

// A formula in one type, instantiated by define_rule-inl.h.
template <typename T>
struct TypedDrivers {
  FormulaDriver<T> scalar = nullptr;
  FormulaDriver<T> simd = nullptr;  // by the best instruction set of this CPU
};

struct FormulaDrivers {
  const char* formula = nullptr;  // its name: "Adam", also of AdamW
  bool (*has_variant)(SlotSet slots) = nullptr;
  TypedDrivers<float> float32;
  // Of one gradient, and without copies.
  TypedDrivers<double> float64;
};

// Runs a formula over a span, of whatever types its arrays are. `rule` is whose it is, for the
// message of a process that ends because the span does not fit the formula.
void RunFormula(const RuleSpec& rule, const FormulaDrivers& drivers, DriverKind driver,
                const Coefficients& coefficients, const SpanUpdate& span);

// Base of the rules that are one formula.
class ElementWiseRule : public UpdateRule {
 public:
  ElementWiseRule(RuleSpec spec, const FormulaDrivers& drivers);

  const RuleSpec& spec() const final { return spec_; }
  const char* formula() const final { return drivers_.formula; }
  void Update(DriverKind driver, const Coefficients& coefficients,
              const SpanUpdate& span) const final;

 private:
  const RuleSpec spec_;
  const FormulaDrivers drivers_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_ELEMENT_WISE_RULE_H_

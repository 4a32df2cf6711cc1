#include "server/update/element_wise_rule.h"

#include <cfenv>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace optshard {
namespace {

// A trainer may have changed its thread's rounding or may flush denormals to zero
// (torch.set_flush_denormal); the bits of an update must not depend on which thread runs it.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() { std::fesetenv(&saved_); }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  std::fenv_t saved_;
};

FormulaArguments ArgumentsOf(const Coefficients& coefficients, const SpanUpdate& span) {
  FormulaArguments arguments;
  arguments.coefficients = coefficients.values.data();
  arguments.parameter = span.parameter;
  arguments.gradient = span.gradient;
  for (float* slot : span.slots) {
    if (slot == nullptr) break;
    arguments.slots[arguments.slot_count++] = slot;
  }
  arguments.elements = span.elements;
  return arguments;
}

void Skip(FormulaArguments& arguments, int64_t elements) {
  arguments.parameter += elements;
  arguments.gradient += elements;
  for (int k = 0; k < arguments.slot_count; ++k) arguments.slots[k] += elements;
  arguments.elements -= elements;
}

}  // namespace

ElementWiseRule::ElementWiseRule(RuleSpec spec, const FormulaDrivers& drivers)
    : spec_(std::move(spec)), drivers_(drivers) {}

void ElementWiseRule::Update(DriverKind driver, const Coefficients& coefficients,
                             const SpanUpdate& span) const {
  if (span.elements <= 0) return;
  FormulaArguments arguments = ArgumentsOf(coefficients, span);
  if (!drivers_.has_variant(arguments.slot_count)) {
    std::fprintf(stderr,
                 "Rule \"%s\" has no variant with %d slots: give the slots of its Slots()\n",
                 spec_.name.c_str(), arguments.slot_count);
    std::abort();
  }
  const DefaultFloatingPoint scope;
  if (driver == DriverKind::kSimd) Skip(arguments, drivers_.simd(arguments));
  drivers_.scalar(arguments);
}

}  // namespace optshard

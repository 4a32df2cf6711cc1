#include "server/update/element_wise_rule.h"

#include <xmmintrin.h>

#include <utility>

#include "common/fatal.h"

namespace optshard {
namespace {

// A trainer may have changed its thread's rounding or may flush denormals to zero
// (torch.set_flush_denormal); the bits of an update must not depend on which thread runs it. On
// x86-64 floats are SSE's, whose control register is read in a few cycles: mostly nothing is to do.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() : saved_(_mm_getcsr()) {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(kDefault);
  }
  ~DefaultFloatingPoint() {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(saved_);
  }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  static constexpr unsigned kDefault = 0x1f80;  // round to nearest, all exceptions masked
  static constexpr unsigned kFlags = 0x3f;      // which exceptions there were

  const unsigned saved_;
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
  const ReplicaSpans& replicas = span.replicas;
  arguments.gradients = replicas.gradients.data();
  arguments.replicas = static_cast<int>(replicas.gradients.size());
  arguments.group_sizes = replicas.group_sizes.data();
  arguments.groups = static_cast<int>(replicas.group_sizes.size());
  arguments.copies = replicas.copies.data();
  arguments.copy_count = static_cast<int>(replicas.copies.size());
  arguments.first = replicas.first;
  return arguments;
}

void CheckVariant(const RuleSpec& spec, const FormulaDrivers& drivers, int slot_count) {
  if (drivers.has_variant(slot_count)) return;
  Fatal("Rule \"%s\" has no variant with %d slots: give the slots of its Slots()", spec.name,
        slot_count);
}

void CheckGroups(const RuleSpec& spec, const FormulaArguments& arguments) {
  int64_t members = 0;
  bool empty = false;
  for (int group = 0; group < arguments.groups; ++group) {
    members += arguments.group_sizes[group];
    empty = empty || arguments.group_sizes[group] <= 0;
  }
  if (members == arguments.replicas && !empty) return;
  Fatal(
      "Rule \"%s\": %d groups with %d members%s were given for the gradients of %d replicas: "
      "give the sizes of the reduction tree's node groups",
      spec.name, arguments.groups, members, empty ? ", some without any," : "", arguments.replicas);
}

}  // namespace

ElementWiseRule::ElementWiseRule(RuleSpec spec, const FormulaDrivers& drivers)
    : spec_(std::move(spec)), drivers_(drivers) {}

void ElementWiseRule::Update(DriverKind driver, const Coefficients& coefficients,
                             const SpanUpdate& span) const {
  if (span.elements <= 0) return;
  const FormulaArguments arguments = ArgumentsOf(coefficients, span);
  CheckVariant(spec_, drivers_, arguments.slot_count);
  CheckGroups(spec_, arguments);
  const DefaultFloatingPoint scope;
  const int64_t done = driver == DriverKind::kSimd ? drivers_.simd(arguments) : 0;
  if (done == span.elements) return;
  drivers_.scalar(ArgumentsOf(coefficients, span.Part(done, span.elements - done)));
}

}  // namespace optshard

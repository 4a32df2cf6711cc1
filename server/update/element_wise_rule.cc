#include "server/update/element_wise_rule.h"

#include <algorithm>
#include <utility>

#include "common/default_floating_point.h"
#include "common/fatal.h"

namespace optshard {
namespace {

FormulaArguments ArgumentsOf(const Coefficients& coefficients, const SpanUpdate& span) {
  FormulaArguments arguments;
  arguments.coefficients = coefficients.values.data();
  arguments.parameter = span.parameter;
  arguments.gradient = span.gradient;
  arguments.slot_set = coefficients.slots;
  std::copy(span.slots.begin(), span.slots.end(), arguments.slots);
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

void CheckVariant(const RuleSpec& spec, const FormulaDrivers& drivers, SlotSet slots,
                  const SpanUpdate& span) {
  if (!drivers.has_variant(slots)) {
    Fatal("Rule \"%s\" has no variant of its formula with the slots 0x%x", spec.name, slots);
  }
  const auto given = std::find(span.slots.begin(), span.slots.end(), nullptr) - span.slots.begin();
  if (given == __builtin_popcount(slots)) return;
  Fatal("Rule \"%s\": %d slots were given, expected %d: give those of its Slots()", spec.name,
        given, __builtin_popcount(slots));
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
  CheckVariant(spec_, drivers_, coefficients.slots, span);
  CheckGroups(spec_, arguments);
  const DefaultFloatingPoint default_mode;
  const int64_t done = driver == DriverKind::kSimd ? drivers_.simd(arguments) : 0;
  if (done == span.elements) return;
  drivers_.scalar(ArgumentsOf(coefficients, span.Part(done, span.elements - done)));
}

}  // namespace optshard

#include "server/update/element_wise_rule.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/types/optional.h"
#include "common/default_floating_point.h"
#include "common/fatal.h"
#include "server/update/span_tiles.h"

namespace optshard {
namespace {

// How a formula's loop goes over a span: with everything in what it computes in, or with replicas
// in bfloat16 beside a master.
enum class Pass { kPlain, kRounded };

// Of the right types for that: the formula can run over the arrays themselves.
template <typename T>
FormulaArguments<T> ArgumentsOf(const Coefficients& coefficients, const SpanUpdate& span,
                                Pass pass) {
  FormulaArguments<T> arguments;
  std::transform(coefficients.values.begin(), coefficients.values.end(), arguments.coefficients,
                 [](double value) { return static_cast<T>(value); });
  arguments.parameter = span.parameter.As<T>();
  if (pass == Pass::kRounded) {
    arguments.parameter = span.master.As<T>();
    arguments.rounded = span.parameter.As<uint16_t>();
  }
  arguments.gradient = span.gradient.As<T>();
  arguments.slot_set = coefficients.slots;
  std::transform(span.slots.begin(), span.slots.end(), arguments.slots,
                 [](const SlotArray& slot) { return slot.As<T>(); });
  arguments.elements = span.elements;
  const ReplicaSpans& replicas = span.replicas;
  arguments.gradients.arrays = replicas.gradients.data();
  arguments.gradients.count = static_cast<int>(replicas.gradients.size());
  arguments.gradients.group_sizes = replicas.group_sizes.data();
  arguments.gradients.groups = static_cast<int>(replicas.group_sizes.size());
  arguments.gradients.divisor = arguments.gradients.count;
  arguments.gradients.first = replicas.first;
  arguments.copies = replicas.copies.data();
  arguments.copy_count = static_cast<int>(replicas.copies.size());
  return arguments;
}

// Whether the drivers take the span as it is, with everything in T.
template <typename T>
bool IsPlain(const SpanUpdate& span) {
  const DType dtype = kDTypeOf<T>;
  if (span.master || span.parameter.dtype() != dtype || span.gradient.dtype() != dtype) {
    return false;
  }
  if (dtype == DType::kFloat32) return true;
  const absl::Span<const void* const> gradients = span.replicas.gradients;
  const bool one_gradient = gradients.empty() || (gradients.size() == 1 && gradients[0] != nullptr);
  return one_gradient && span.replicas.copies.empty();
}

// Likewise, with replicas in bfloat16.
bool IsRounded(const SpanUpdate& span) {
  return span.parameter.dtype() == DType::kBFloat16 && span.gradient.dtype() == DType::kBFloat16 &&
         span.master && !span.replicas.gradients.empty() && CanStream(span);
}

// Nothing: the span goes by tiles.
template <typename T>
absl::optional<Pass> DirectPass(const SpanUpdate& span) {
  for (const SlotArray& slot : span.slots) {
    if (slot && (slot.is_coded() || slot.dtype() != kDTypeOf<T>)) return absl::nullopt;
  }
  if (IsPlain<T>(span)) return Pass::kPlain;
  if (std::is_same_v<T, float> && IsRounded(span)) return Pass::kRounded;
  return absl::nullopt;
}

template <typename T>
void RunDirect(const TypedDrivers<T>& drivers, DriverKind driver, const Coefficients& coefficients,
               const SpanUpdate& span, Pass pass) {
  const int64_t done =
      driver == DriverKind::kSimd ? drivers.simd(ArgumentsOf<T>(coefficients, span, pass)) : 0;
  if (done == span.elements) return;
  const SpanUpdate rest = span.Part(done, span.elements - done);
  drivers.scalar(ArgumentsOf<T>(coefficients, rest, pass));
}

void CheckSlots(const RuleSpec& spec, const FormulaDrivers& drivers, SlotSet slots,
                const SpanUpdate& span) {
  if (!drivers.has_variant(slots)) {
    Fatal("Rule \"%s\" has no variant of its formula with the slots 0x%x", spec.name, slots);
  }
  const auto given =
      std::find_if_not(span.slots.begin(), span.slots.end(),
                       [](const SlotArray& slot) { return static_cast<bool>(slot); }) -
      span.slots.begin();
  if (given == __builtin_popcount(slots)) return;
  Fatal("Rule \"%s\": %d slots were given, expected %d: give those of its Slots()", spec.name,
        given, __builtin_popcount(slots));
}

void CheckTypes(const RuleSpec& spec, const Coefficients& coefficients, const SpanUpdate& span) {
  const DType arithmetic = ArithmeticOf(span.parameter.dtype());
  const auto check = [&](const char* what, DType given) {
    if (given == arithmetic) return;
    Fatal("Rule \"%s\": the %s of a %s parameter was given as if computed in %s, expected %s",
          spec.name, what, std::string(NameOf(span.parameter.dtype())), std::string(NameOf(given)),
          std::string(NameOf(arithmetic)));
  };
  check("coefficients", coefficients.arithmetic);
  check("gradient", ArithmeticOf(span.gradient.dtype()));
  for (const SlotArray& slot : span.slots) {
    if (slot) check("slots", ArithmeticOf(slot.dtype()));
  }
  if (span.correction != nullptr && (span.master || SizeOf(span.parameter.dtype()) != 2)) {
    Fatal(
        "Rule \"%s\": a correction of a %s parameter was given, expected that of a 16-bit one "
        "without a master",
        spec.name, std::string(NameOf(span.parameter.dtype())));
  }
  const bool is_rounded = span.rounded_to != DType::kFloat32;
  if (is_rounded &&
      (!span.master || SizeOf(span.rounded_to) != 2 || span.parameter.dtype() != DType::kFloat32)) {
    Fatal(
        "Rule \"%s\": a %s parameter is to be rounded to %s%s, expected a float32 one with a "
        "master and a 16-bit type",
        spec.name, std::string(NameOf(span.parameter.dtype())),
        std::string(NameOf(span.rounded_to)), span.master ? "" : " without a master");
  }
  if (!span.master) return;
  const DType holds = is_rounded ? span.rounded_to : span.parameter.dtype();
  if (span.master.dtype() == DType::kFloat32 && SizeOf(holds) == 2) return;
  Fatal("Rule \"%s\": a %s master of a %s parameter was given, expected float32 of a 16-bit one",
        spec.name, std::string(NameOf(span.master.dtype())),
        std::string(NameOf(span.parameter.dtype())));
}

void CheckGroups(const RuleSpec& spec, const ReplicaSpans& replicas) {
  int64_t members = 0;
  bool empty = false;
  for (const int size : replicas.group_sizes) {
    members += size;
    empty = empty || size <= 0;
  }
  if (members == static_cast<int64_t>(replicas.gradients.size()) && !empty) return;
  Fatal(
      "Rule \"%s\": %d groups with %d members%s were given for the gradients of %d replicas: "
      "give the sizes of the reduction tree's node groups",
      spec.name, replicas.group_sizes.size(), members, empty ? ", some without any," : "",
      replicas.gradients.size());
}

template <typename T>
void RunIn(const TypedDrivers<T>& drivers, DriverKind driver, const Coefficients& coefficients,
           const SpanUpdate& span) {
  if (const auto pass = DirectPass<T>(span); pass.has_value()) {
    RunDirect(drivers, driver, coefficients, span, *pass);
    return;
  }
  SpanTiles<T> tiles(span);
  while (tiles.Next()) {
    RunDirect(drivers, driver, coefficients, tiles.tile(), Pass::kPlain);
    tiles.Finish();
  }
}

}  // namespace

void RunFormula(const RuleSpec& rule, const FormulaDrivers& drivers, DriverKind driver,
                const Coefficients& coefficients, const SpanUpdate& span) {
  if (span.elements <= 0) return;
  CheckSlots(rule, drivers, coefficients.slots, span);
  CheckTypes(rule, coefficients, span);
  CheckGroups(rule, span.replicas);
  const DefaultFloatingPoint default_mode;
  if (coefficients.arithmetic == DType::kFloat64) {
    RunIn(drivers.float64, driver, coefficients, span);
  } else {
    RunIn(drivers.float32, driver, coefficients, span);
  }
}

ElementWiseRule::ElementWiseRule(RuleSpec spec, const FormulaDrivers& drivers)
    : spec_(std::move(spec)), drivers_(drivers) {}

void ElementWiseRule::Update(DriverKind driver, const Coefficients& coefficients,
                             const SpanUpdate& span) const {
  RunFormula(spec_, drivers_, driver, coefficients, span);
}

}  // namespace optshard

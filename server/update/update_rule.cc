#include "server/update/update_rule.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/fatal.h"
#include "common/nearest_name.h"
#include "common/parameter_space.h"
#include "common/state_options.h"

namespace optshard {
namespace {

std::string TypeName(const HyperValue& value) {
  if (absl::holds_alternative<bool>(value)) return "a flag";
  if (absl::holds_alternative<double>(value)) return "a number";
  if (absl::holds_alternative<std::string>(value)) return "a name";
  const size_t count = absl::get<Numbers>(value).size();
  return count == 2 ? "a pair of numbers" : absl::StrCat(count, " numbers");
}

bool IsOfOneType(const HyperValue& a, const HyperValue& b) {
  if (a.index() != b.index()) return false;
  const Numbers* numbers = absl::get_if<Numbers>(&a);
  return numbers == nullptr || numbers->size() == absl::get<Numbers>(b).size();
}

// The choice that was probably meant.
std::string NearestChoice(const OptionSpec& option, const HyperValue& value) {
  const std::string* choice = absl::get_if<std::string>(&value);
  return choice == nullptr ? "" : DidYouMean(*choice, option.choices);
}

const OptionSpec* FindOption(const RuleSpec& spec, absl::string_view name) {
  for (const OptionSpec& option : spec.options) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

absl::Status CheckValue(const RuleSpec& spec, absl::string_view name, const HyperValue& value) {
  const OptionSpec* option = FindOption(spec, name);
  if (option == nullptr) {
    std::vector<std::string> known;
    for (const OptionSpec& known_option : spec.options) known.push_back(known_option.name);
    return absl::InvalidArgumentError(absl::StrCat("rule \"", spec.name, "\" has no option \"",
                                                   name, "\"; it has ", absl::StrJoin(known, ", "),
                                                   DidYouMean(name, known)));
  }
  if (!IsOfOneType(value, option->default_value)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rule \"", spec.name, "\": option \"", name, "\" is ", TypeName(value), ", ",
        ToString(value), "; it must be ", TypeName(option->default_value), ": ", option->range));
  }
  if (!option->valid(value)) {
    return absl::InvalidArgumentError(absl::StrCat("rule \"", spec.name, "\": option \"", name,
                                                   "\" is ", ToString(value), "; it must be ",
                                                   option->range, NearestChoice(*option, value)));
  }
  return absl::OkStatus();
}

bool Exists(const SlotSpec& slot, const Hyperparameters& group) {
  if (slot.exists_with.empty()) return true;
  const HyperValue& value = *group.Find(slot.exists_with);
  return value != HyperValue(false) && value != HyperValue(0.0);
}

SlotSet ExistingSlots(const RuleSpec& spec, const Hyperparameters& group) {
  SlotSet existing = 0;
  for (size_t k = 0; k < spec.slots.size(); ++k) {
    if (Exists(spec.slots[k], group)) existing |= SlotSet{1} << k;
  }
  return existing;
}

std::string SlotNames(const std::vector<Slot>& slots) {
  if (slots.empty()) return "none";
  return absl::StrJoin(slots, ", ",
                       [](std::string* out, const Slot& slot) { out->append(slot.name); });
}

// Filled at static initialisation; read by any thread. Never destroyed: rules are used by threads
// that may outlive main.
struct Registry {
  absl::Mutex mutex;
  std::map<std::string, const UpdateRule*> rules ABSL_GUARDED_BY(mutex);

  static Registry& Get() {
    static Registry* const registry = new Registry;
    return *registry;
  }
};

// Nothing cuts a slot where it does not follow the elements.
void CheckExtent(const RuleSpec& spec, const SlotSpec& slot) {
  if (slot.extent.shape_for == nullptr) return;
  if (!spec.element_wise && slot.eight_bit == EightBit::kNo) return;
  Fatal(
      "Rule \"%s\": slot \"%s\" has a shape of its own, expected a rule that is not element-wise, "
      "and a slot that is not kept in 8 bits",
      spec.name, slot.name);
}

bool HasOption(const RuleSpec& spec, const std::string& name) {
  return name.empty() || FindOption(spec, name) != nullptr;
}

bool HasNumber(const RuleSpec& spec, const std::string& name) {
  return name.empty() || (HasOption(spec, name) &&
                          absl::holds_alternative<double>(FindOption(spec, name)->default_value));
}

// A mistake in a rule's file ends the process when it starts, not when memory is written past its
// end.
void CheckDeclaration(const RuleSpec& spec) {
  if (spec.sparse_gradients != SparseGradients::kNo && !spec.element_wise) {
    Fatal("Rule \"%s\" takes sparse gradients and needs whole parameters, expected one of both",
          spec.name);
  }
  if (spec.slots.size() > kMaxSlots) {
    Fatal("Rule \"%s\" declares %d slots, expected at most %d", spec.name, spec.slots.size(),
          kMaxSlots);
  }
  if (spec.scalar_slots.size() > kMaxScalarSlots) {
    Fatal("Rule \"%s\" declares %d slots of one number a parameter, expected at most %d", spec.name,
          spec.scalar_slots.size(), kMaxScalarSlots);
  }
  std::set<std::string> names;
  const auto check_name = [&](const std::string& name) {
    if (name == kMasterSlot || name == kCorrectionSlot || name == "step") {
      Fatal("Rule \"%s\" declares a slot \"%s\", which every rule may have", spec.name, name);
    }
    if (!names.insert(name).second) {
      Fatal("Rule \"%s\" declares two slots \"%s\"", spec.name, name);
    }
  };
  for (const ScalarSlotSpec& slot : spec.scalar_slots) {
    check_name(slot.name);
    if (!HasNumber(spec, slot.begins_with)) {
      Fatal("Rule \"%s\": slot \"%s\" begins with \"%s\", expected a number among the options",
            spec.name, slot.name, slot.begins_with);
    }
  }
  for (const SlotSpec& slot : spec.slots) {
    check_name(slot.name);
    if (!HasOption(spec, slot.exists_with) || !HasNumber(spec, slot.begins_with)) {
      Fatal(
          "Rule \"%s\": slot \"%s\" exists with \"%s\" and begins with \"%s\", expected options of "
          "the rule, the second one a number",
          spec.name, slot.name, slot.exists_with, slot.begins_with);
    }
    CheckExtent(spec, slot);
  }
}

}  // namespace

absl::optional<std::vector<int64_t>> Slot::ShapeFor(absl::Span<const int64_t> parameter) const {
  if (has_own_shape()) return extent.shape_for(parameter);
  return std::vector<int64_t>(parameter.begin(), parameter.end());
}

int64_t Slot::ValuesFor(absl::Span<const int64_t> parameter, int64_t elements) const {
  if (!has_own_shape()) return elements;
  const absl::optional<std::vector<int64_t>> shape = ShapeFor(parameter);
  return shape.has_value() ? ElementsOf(*shape) : 0;
}

void Coefficients::Set(int index, double value) {
  if (index < 0 || index >= kMaxCoefficients) {
    Fatal("Coefficient %d was set, expected one of 0 to %d", index, kMaxCoefficients - 1);
  }
  values[index] = arithmetic == DType::kFloat64 ? value : static_cast<float>(value);
}

void Coefficients::SetWithRest(int index, int rest, double value) {
  Set(index, value);
  Set(rest, value - values[index]);
}

SpanUpdate SpanUpdate::Part(int64_t from, int64_t count) const {
  SpanUpdate part = *this;
  part.parameter = parameter.From(from);
  part.gradient = gradient.From(from);
  for (SlotArray& slot : part.slots) slot = slot.From(from);
  part.master = master.From(from);
  if (correction != nullptr) part.correction = correction + from;
  part.replicas.first += from;
  part.elements = count;
  return part;
}

std::string RuleSpec::DTypeNames() const {
  return absl::StrJoin(dtypes, ", ",
                       [](std::string* out, DType dtype) { absl::StrAppend(out, NameOf(dtype)); });
}

absl::Status UpdateRule::CheckDType(DType dtype) const {
  const std::vector<DType>& taken = spec().dtypes;
  if (taken.empty() || std::find(taken.begin(), taken.end(), dtype) != taken.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("rule \"", spec().name, "\" takes parameters of ",
                                                 spec().DTypeNames(),
                                                 " only; convert the parameter with to(), or put "
                                                 "it into a param group with another one of the "
                                                 "rules of docs/rules.md"));
}

absl::Status UpdateRule::CheckParameter(absl::Span<const int64_t>) const {
  return absl::OkStatus();
}

int64_t UpdateRule::UpdateCost(absl::Span<const int64_t>) const { return 0; }

int64_t UpdateRule::WorkspaceBytes(absl::Span<const int64_t>, DType) const { return 0; }

std::vector<Slot> UpdateRule::Slots(const Hyperparameters& group) const {
  const SlotSet existing = ExistingSlots(spec(), group);
  std::vector<Slot> slots;
  for (size_t k = 0; k < spec().slots.size(); ++k) {
    if ((existing >> k & 1) == 0) continue;
    const SlotSpec& slot = spec().slots[k];
    const double initial = slot.begins_with.empty() ? 0 : group.Number(slot.begins_with);
    slots.push_back({slot.name, slot.doc, initial, slot.eight_bit, slot.extent});
  }
  return slots;
}

ScalarSlots UpdateRule::InitialScalarSlots(const Hyperparameters& group) const {
  ScalarSlots values{};
  for (size_t k = 0; k < spec().scalar_slots.size(); ++k) {
    const ScalarSlotSpec& slot = spec().scalar_slots[k];
    values[k] = slot.begins_with.empty() ? slot.initial : group.Number(slot.begins_with);
  }
  return values;
}

Coefficients UpdateRule::Prepare(const Hyperparameters& group, StepNumber step, DType dtype,
                                 const ScalarSlots& scalar_slots) const {
  Coefficients out;
  out.scalar_slots = scalar_slots;
  out.arithmetic = ArithmeticOf(dtype);
  out.slots = ExistingSlots(spec(), group);
  SetCoefficients(group, step, &out);
  return out;
}

absl::StatusOr<Hyperparameters> UpdateRule::Validate(const Hyperparameters& given) const {
  for (const auto& [name, value] : given.values()) {
    absl::Status status = CheckValue(spec(), name, value);
    if (!status.ok()) return status;
  }
  Hyperparameters filled = given;
  for (const OptionSpec& option : spec().options) {
    if (given.Find(option.name) == nullptr) filled.Set(option.name, option.default_value);
  }
  absl::Status together = ValidateTogether(filled);
  if (!together.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rule \"", spec().name, "\": ", together.message()));
  }
  return filled;
}

absl::Status UpdateRule::ValidateChange(const Hyperparameters& constructed,
                                        const Hyperparameters& now) const {
  const std::string before = SlotNames(Slots(constructed));
  const std::string after = SlotNames(Slots(now));
  if (before == after) return absl::OkStatus();
  std::vector<std::string> changed;
  for (const SlotSpec& slot : spec().slots) {
    if (Exists(slot, constructed) == Exists(slot, now)) continue;
    const std::string& option = slot.exists_with;
    changed.push_back(absl::StrCat("option \"", option, "\" was constructed as ",
                                   ToString(*constructed.Find(option)), " and is now ",
                                   ToString(*now.Find(option))));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "rule \"", spec().name, "\": ", absl::StrJoin(changed, "; "),
      ", which changes the slots from ", before, " to ", after,
      ": they are fixed at construction. Construct the optimizer with the value it is to have"));
}

absl::Status UpdateRule::ValidateTogether(const Hyperparameters&) const { return absl::OkStatus(); }

absl::Status UpdateRule::ValidateSparse(const Hyperparameters& group) const {
  const HyperValue* const decay = group.Find("weight_decay");
  if (decay == nullptr || *decay == HyperValue(0.0)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "rule \"", spec().name, "\": option \"weight_decay\" is ", ToString(*decay),
      "; with a sparse gradient it must be 0: the gradient has not all rows that decay"));
}

bool UpdateRule::ChangesOtherRows(const Hyperparameters&) const { return false; }

absl::StatusOr<const UpdateRule*> RuleRegistry::Find(absl::string_view name) {
  std::vector<std::string> known;
  for (const UpdateRule* rule : All()) {
    if (rule->spec().name == name) return rule;
    known.push_back(rule->spec().name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no update rule \"", name, "\"; known rules: ",
                   known.empty() ? "none" : absl::StrJoin(known, ", "), DidYouMean(name, known)));
}

std::vector<const UpdateRule*> RuleRegistry::All() {
  Registry& registry = Registry::Get();
  absl::MutexLock lock(&registry.mutex);
  std::vector<const UpdateRule*> rules;
  for (const auto& [name, rule] : registry.rules) rules.push_back(rule);
  return rules;
}

bool RuleRegistry::Register(const UpdateRule* rule) {
  CheckDeclaration(rule->spec());
  Registry& registry = Registry::Get();
  absl::MutexLock lock(&registry.mutex);
  if (!registry.rules.emplace(rule->spec().name, rule).second) {
    Fatal("RuleRegistry: two rules are named \"%s\"", rule->spec().name);
  }
  return true;
}

}  // namespace optshard

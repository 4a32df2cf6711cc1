// Prints docs/rules.md: the update rules that are linked in, from their declarations.
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/update/update_rule.h"

namespace optshard {
namespace {

constexpr char kHead[] = R"(# Update rules

Made from the rules' declarations by `bazel run //server/update:rules_page > docs/rules.md`; a test compares
them. Names and defaults are PyTorch's where it has the rule. How bits stay equal, and how far from PyTorch's
they are: [numerics](numerics.md).

Choose a rule by its name: `optshard::RuleOptions("lion").Set("lr", 1e-4)`. For Adagrad, Adam, AdamW, RMSprop
and SGD you can also give the options of torch::optim.

A param group may have a rule of its own. Give the group options of that rule; what they do not set has the
rule's default:

```cpp
std::vector<torch::optim::OptimizerParamGroup> groups;
groups.emplace_back(matrices, std::make_unique<optshard::RuleOptions>("muon"));
groups.emplace_back(others);  // the optimizer's rule
optshard::ShardedOptimizer optimizer(groups, torch::optim::AdamWOptions(1e-3), options);
```

A rule takes parameters of float32, float64, float16 and bfloat16 where its section does not list fewer types.

Slots are float32, or bfloat16 with that `state_dtype`. With `int8_dynamic` and `int8_companded` those of
larger parameters take 8 bits an element, where a rule's slots all can
([formats](numerics.md#slots-in-8-bits)). Those of float64 parameters are float64. The `step` of a parameter is known with every rule; the tables list it
where PyTorch keeps it as a slot.
)";

constexpr char kNeedsWholeParameters[] =
    "\n\nNeeds whole parameters: not with the partition policy \"balanced\".";

// The option's name as code, or what is said where there is none.
std::string Option(const std::string& name, absl::string_view none) {
  return name.empty() ? std::string(none) : absl::StrCat("`", name, "`");
}

absl::string_view EightBitName(EightBit kept) {
  switch (kept) {
    case EightBit::kNo:
      return "no";
    case EightBit::kSigned:
      return "signed";
    case EightBit::kNonNegative:
      return "non-negative";
  }
  return "";
}

absl::string_view SparseText(SparseGradients sparse) {
  switch (sparse) {
    case SparseGradients::kNo:
      return "";
    case SparseGradients::kToo:
      return "\n\nTakes [sparse gradients](semantics.md#sparse-gradients), too.";
    case SparseGradients::kOnly:
      return "\n\nTakes [sparse gradients](semantics.md#sparse-gradients) only.";
  }
  return "";
}

std::string DTypesText(const RuleSpec& spec) {
  if (spec.dtypes.empty()) return "";
  return absl::StrCat("\n\nTakes parameters of ", spec.DTypeNames(), " only.");
}

std::string Section(const RuleSpec& spec) {
  std::string text = absl::StrCat(
      "\n## ", spec.name, "\n\n", spec.doc, ".\n\nSource: ", spec.source,
      spec.element_wise ? "" : kNeedsWholeParameters, SparseText(spec.sparse_gradients),
      DTypesText(spec), "\n\n| option | default | range | |\n|---|---|---|---|\n");
  for (const OptionSpec& option : spec.options) {
    absl::StrAppend(&text, "| `", option.name, "` | ", ToString(option.default_value), " | ",
                    option.range, " | ", option.doc, " |\n");
  }
  if (spec.slots.empty() && spec.scalar_slots.empty()) return text;
  absl::StrAppend(&text,
                  "\n| slot | exists with | begins with | in 8 bits | |\n|---|---|---|---|---|\n");
  for (const SlotSpec& slot : spec.slots) {
    absl::StrAppend(&text, "| `", slot.name, "` | ", Option(slot.exists_with, "always"), " | ",
                    Option(slot.begins_with, "0"), " | ", EightBitName(slot.eight_bit), " | ",
                    slot.doc, slot.extent.doc.empty() ? "" : "; ", slot.extent.doc, " |\n");
  }
  for (const ScalarSlotSpec& slot : spec.scalar_slots) {
    absl::StrAppend(&text, "| `", slot.name, "` | always | ",
                    Option(slot.begins_with, absl::StrCat(slot.initial)), " | | ", slot.doc,
                    "; one number a parameter |\n");
  }
  if (spec.exports_step) {
    absl::StrAppend(&text, "| `step` | always | 0 | | how often the parameter was updated |\n");
  }
  return text;
}

std::string Page() {
  std::string page = kHead;
  for (const UpdateRule* rule : RuleRegistry::All()) absl::StrAppend(&page, Section(rule->spec()));
  return page;
}

}  // namespace
}  // namespace optshard

int main() {
  const std::string page = optshard::Page();
  return std::fwrite(page.data(), 1, page.size(), stdout) == page.size() ? 0 : 1;
}

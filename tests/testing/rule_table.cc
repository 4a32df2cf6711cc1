#include "tests/testing/rule_table.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/isolated_object.h"
#include "server/update/gradient_support.h"
#include "server/update/state_support.h"
#include "tests/testing/rule_shape.h"

namespace optshard::testing {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

bool Has(const RuleSpec& spec, const char* option) {
  for (const OptionSpec& each : spec.options) {
    if (each.name == option) return true;
  }
  return false;
}

// One large enough to be cut and to be kept in 8 bits, and a small one, of every type.
std::vector<RecordedParameter> Parameters(const UpdateRule& rule, size_t group) {
  static const auto* const kSmall =
      new std::vector<std::vector<int64_t>>{{33}, {}, {17, 3, 3}, {0, 4}, {1025}};
  std::vector<RecordedParameter> parameters;
  for (size_t t = 0; t < std::size(kTypes); ++t) {
    parameters.push_back({{41, 101}, kTypes[t]});
    parameters.push_back({ShapeFor(rule, (*kSmall)[(group + t) % kSmall->size()]), kTypes[t]});
  }
  return parameters;
}

// Tables of which steps touch some rows, of every type.
void AddSparseGroups(RecordedJob& job) {
  for (const RuleOptions& options :
       {RuleOptions("sparse_adam").Set("lr", 0.02), RuleOptions("adagrad").Set("lr", 0.02),
        RuleOptions("sgd").Set("lr", 0.02),
        RuleOptions("sgd").Set("lr", 0.02).Set("momentum", 0.9)}) {
    const UpdateRule& rule = **RuleRegistry::Find(options.rule());
    if (!CheckTakesGradient(rule, *rule.Validate(options.values()), job.state.format, true).ok()) {
      continue;
    }
    std::vector<RecordedParameter> parameters;
    for (const at::ScalarType type : kTypes) {
      if (job.main_gradients && at::isReducedFloatingType(type)) continue;
      for (const auto& shape : {std::vector<int64_t>{101, 41}, std::vector<int64_t>{17, 3, 3}}) {
        RecordedParameter table = {shape, type};
        table.sparse = true;
        parameters.push_back(table);
      }
    }
    job.groups.push_back(
        {absl::StrCat("rows by ", options.rule(), " ", options.values().ToString()), options,
         parameters});
  }
}

}  // namespace

std::vector<RuleOptions> SlotChoices(const UpdateRule& rule) {
  const RuleSpec& spec = rule.spec();
  std::vector<RuleOptions> choices = {RuleOptions(spec.name)};
  // So large that parameters of 16 bits move, too.
  if (Has(spec, "lr")) choices[0].Set("lr", 0.02);
  if (Has(spec, "weight_decay")) choices[0].Set("weight_decay", 0.01);
  if (Has(spec, "t0")) choices[0].Set("t0", 0);  // averaging begins
  for (const SlotSpec& slot : spec.slots) {
    const HyperValue* given = choices.back().values().Find(slot.exists_with);
    if (slot.exists_with.empty() || given != nullptr) continue;
    for (size_t i = choices.size(); i > 0; --i) {
      RuleOptions with = choices[i - 1];
      for (const OptionSpec& option : spec.options) {
        if (option.name != slot.exists_with) continue;
        if (absl::holds_alternative<bool>(option.default_value)) with.Set(option.name, true);
        if (absl::holds_alternative<double>(option.default_value)) with.Set(option.name, 0.9);
      }
      choices.push_back(with);
    }
  }
  return choices;
}

bool GoesBesideLibTorch(const UpdateRule& rule) {
  return rule.spec().name != "muon" || ObjectsAreIsolated();
}

const std::vector<NamedState>& TableStates() {
  const auto state = [](StateFormat format, int master_bits) {
    StateOptions options;
    options.format = format;
    options.master_weights = master_bits > 0;
    if (master_bits > 0) options.master_weight_bits = master_bits;
    return options;
  };
  StateOptions published = state(StateFormat::kFloat32, 0);
  published.publish_dtype = DType::kBFloat16;
  static const auto* const kStates = new std::vector<NamedState>{
      {"InFloat32", state(StateFormat::kFloat32, 0)},
      {"InFloat32WithMasters", state(StateFormat::kFloat32, 32)},
      {"InBFloat16", state(StateFormat::kBFloat16, 0)},
      {"InBFloat16WithCorrections", state(StateFormat::kBFloat16, 24)},
      {"InInt8Dynamic", state(StateFormat::kInt8Dynamic, 0)},
      {"InInt8DynamicWithMasters", state(StateFormat::kInt8Dynamic, 32)},
      {"InInt8CompandedWithCorrections", state(StateFormat::kInt8Companded, 24)},
      {"InFloat32PublishedInBFloat16", published},
      {"InFloat32OfMainGradients", state(StateFormat::kFloat32, 32), /*main_gradients=*/true},
  };
  return *kStates;
}

RecordedJob TableJob(RuleKind kind, const NamedState& state) {
  RecordedJob job;
  job.state = state.options;
  job.main_gradients = state.main_gradients;
  for (const UpdateRule* rule : RuleRegistry::All()) {
    if (rule->spec().element_wise != (kind == RuleKind::kElementWise)) continue;
    if (rule->spec().sparse_gradients == SparseGradients::kOnly) continue;
    if (!GoesBesideLibTorch(*rule)) continue;
    if (!CheckStateFormat(*rule, state.options.format).ok()) continue;
    for (const RuleOptions& options : SlotChoices(*rule)) {
      job.groups.push_back({absl::StrCat(options.rule(), " ", options.values().ToString()), options,
                            Parameters(*rule, job.groups.size())});
    }
  }
  if (kind == RuleKind::kElementWise) AddSparseGroups(job);
  return job;
}

}  // namespace optshard::testing

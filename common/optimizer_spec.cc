#include "common/optimizer_spec.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/block_code.h"
#include "common/checked_math.h"
#include "common/digest.h"
#include "common/dtype.h"
#include "common/hyperparameters.h"
#include "common/request_limits.h"

namespace optshard {
namespace {

constexpr int64_t kSmallestBucketBytes = 64;

std::string TextOf(const BucketOptions& buckets) {
  return absl::StrFormat("max_bytes=%d pack_below_bytes=%d", buckets.max_bytes,
                         buckets.pack_below_bytes);
}

absl::Status CheckRules(const std::vector<GroupRule>& rules) {
  for (size_t g = 0; g < rules.size(); ++g) {
    const std::string where = absl::StrCat("param group ", g, ": ");
    if (rules[g].name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(where, "the update rule's name is empty"));
    }
    const std::map<std::string, HyperValue>& values = rules[g].hyperparameters.values();
    absl::Status valid = CheckLength(absl::StrCat(where, "the update rule's name"), rules[g].name);
    valid.Update(CheckCount(absl::StrCat(where, "the number of hyperparameters"),
                            static_cast<int64_t>(values.size()), kMaxHyperparametersPerGroup));
    for (const auto& [name, value] : values) {
      valid.Update(CheckLength(absl::StrCat(where, "the name of a hyperparameter"), name));
      if (const std::string* choice = absl::get_if<std::string>(&value)) {
        valid.Update(CheckLength(absl::StrCat(where, "the choice of a hyperparameter"), *choice));
      }
    }
    if (!valid.ok()) return valid;
  }
  return absl::OkStatus();
}

// What is computed from a space that is valid itself.
absl::Status CheckProducts(const OptimizerSpec& spec) {
  const int64_t parameters = spec.space.parameter_count();
  absl::Status valid =
      CheckCount(absl::StrCat("world size ", spec.world_size, " times ", parameters, " parameters"),
                 spec.world_size * parameters, kMaxRanksTimesParameters);
  int64_t bytes = 0;
  for (int i = 0; i < spec.space.parameter_count(); ++i) {
    const ParameterSpec& parameter = spec.space.parameter(i);
    bytes += parameter.elements() * static_cast<int64_t>(SizeOf(parameter.dtype));
  }
  // Nothing is cut into more, as a bucket that is cut on the grid is more than half full; a
  // replicated parameter is in the buckets of every rank.
  const int64_t copies = spec.policy == PartitionPolicy::kReplicated ? spec.world_size : 1;
  const int64_t pieces =
      SaturatingMultiply(copies, parameters + 2 * (bytes / spec.buckets.max_bytes));
  valid.Update(CheckCount(
      absl::StrFormat("the number of pieces into which buckets.max_bytes = %d and the partition "
                      "policy \"%s\" cut %d bytes of parameters",
                      spec.buckets.max_bytes, NameOf(spec.policy), bytes),
      pieces, kMaxBucketPieces));
  return valid;
}

std::string DifferenceText(absl::string_view field, absl::string_view a_name, absl::string_view a,
                           absl::string_view b_name, absl::string_view b) {
  return absl::StrFormat("%s: %s has \"%s\", %s has \"%s\"", field, a_name, a, b_name, b);
}

absl::optional<std::string> FirstDifference(const std::vector<GroupRule>& a,
                                            absl::string_view a_name,
                                            const std::vector<GroupRule>& b,
                                            absl::string_view b_name) {
  for (size_t g = 0; g < std::min(a.size(), b.size()); ++g) {
    if (a[g].name == b[g].name) continue;
    return DifferenceText(absl::StrCat("update rule of param group ", g), a_name, a[g].name, b_name,
                          b[g].name);
  }
  return absl::nullopt;
}

absl::string_view TextOf(bool flag) { return flag ? "true" : "false"; }

// What all ranks have alike, but for rules and parameters: as it is compared and shown.
struct Field {
  absl::string_view name;
  std::string value;
};

std::vector<Field> FieldsOf(const OptimizerSpec& spec) {
  const auto text = [](absl::string_view value) { return std::string(value); };
  return {
      {"world size", absl::StrCat(spec.world_size)},
      {"gradient mode", text(NameOf(spec.gradient_mode))},
      {"partition policy", text(NameOf(spec.policy))},
      {"buckets", TextOf(spec.buckets)},
      {"master_weights", text(TextOf(spec.state.master_weights))},
      {"master_weight_bits", absl::StrCat(spec.state.master_weight_bits)},
      {"publish_dtype", text(NameOf(spec.state.publish_dtype))},
      {"state_dtype", text(NameOf(spec.state.format))},
      {"share_parameters", text(TextOf(spec.share_parameters))},
  };
}

}  // namespace

absl::Status OptimizerSpec::Validate() const {
  if (world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the world size is ", world_size, ", expected at least 1"));
  }
  absl::Status size = CheckCount("the world size", world_size, kMaxWorldSize);
  if (!size.ok()) return size;
  if (rules.size() != space.groups().size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the update rules of %d param groups were given, expected those of %d",
                        rules.size(), space.group_count()));
  }
  if (buckets.max_bytes < kSmallestBucketBytes) {
    return absl::InvalidArgumentError(absl::StrCat("buckets.max_bytes is ", buckets.max_bytes,
                                                   ", expected at least ", kSmallestBucketBytes));
  }
  if (buckets.pack_below_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "buckets.pack_below_bytes is ", buckets.pack_below_bytes, ", expected at least 0"));
  }
  const int64_t grid_bytes = kCodeGrid * static_cast<int64_t>(sizeof(float));
  if (IsCoded(state.format) && buckets.max_bytes < grid_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "buckets.max_bytes is %d, expected at least %d with state_dtype \"%s\", whose blocks no "
        "bucket may cut; give larger buckets, or choose \"float32\" or \"bfloat16\"",
        buckets.max_bytes, grid_bytes, NameOf(state.format)));
  }
  if (share_parameters && policy == PartitionPolicy::kReplicated) {
    return absl::InvalidArgumentError(
        "share_parameters does not go with the partition policy \"replicated\", with which every "
        "rank would update the one copy; choose another policy, or let each rank have its own "
        "parameters");
  }
  absl::Status valid = space.Validate();
  if (valid.ok()) valid = state.Validate(space);
  if (valid.ok()) valid = CheckRules(rules);
  if (valid.ok()) valid = CheckProducts(*this);
  return valid;
}

uint64_t OptimizerSpec::Digest() const {
  DigestBuilder digest("optshard.OptimizerSpec");
  for (const Field& field : FieldsOf(*this)) digest.AddText(field.name).AddText(field.value);
  digest.AddInt(static_cast<int64_t>(rules.size()));
  for (const GroupRule& rule : rules) digest.AddText(rule.name);
  digest.AddInt(static_cast<int64_t>(space.Digest()));
  return digest.value();
}

absl::optional<std::string> FirstDifference(const OptimizerSpec& a, absl::string_view a_name,
                                            const OptimizerSpec& b, absl::string_view b_name) {
  const std::vector<Field> fields = FieldsOf(a);
  const std::vector<Field> others = FieldsOf(b);
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].value == others[i].value) continue;
    return DifferenceText(fields[i].name, a_name, fields[i].value, b_name, others[i].value);
  }
  absl::optional<std::string> rules = FirstDifference(a.rules, a_name, b.rules, b_name);
  if (rules.has_value()) return rules;
  return FirstDifference(a.space, a_name, b.space, b_name);
}

}  // namespace optshard

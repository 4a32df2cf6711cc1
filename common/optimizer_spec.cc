#include "common/optimizer_spec.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace optshard {
namespace {

constexpr int64_t kSmallestBucketBytes = 64;

std::string TextOf(const BucketOptions& buckets) {
  return absl::StrFormat("max_bytes=%d pack_below_bytes=%d", buckets.max_bytes,
                         buckets.pack_below_bytes);
}

absl::string_view TextOf(bool flag) { return flag ? "true" : "false"; }

}  // namespace

absl::Status OptimizerSpec::Validate() const {
  if (world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the world size is ", world_size, ", expected at least 1"));
  }
  if (rule.empty()) return absl::InvalidArgumentError("the update rule's name is empty");
  if (hyperparameters.size() != space.groups().size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("hyperparameters of %d groups were given, expected those of %d",
                        hyperparameters.size(), space.group_count()));
  }
  if (buckets.max_bytes < kSmallestBucketBytes) {
    return absl::InvalidArgumentError(absl::StrCat("buckets.max_bytes is ", buckets.max_bytes,
                                                   ", expected at least ", kSmallestBucketBytes));
  }
  if (share_parameters && policy == PartitionPolicy::kReplicated) {
    return absl::InvalidArgumentError(
        "share_parameters does not go with the partition policy \"replicated\", with which every "
        "rank would update the one copy; choose another policy, or let each rank have its own "
        "parameters");
  }
  return space.Validate();
}

absl::optional<std::string> FirstDifference(const OptimizerSpec& a, absl::string_view a_name,
                                            const OptimizerSpec& b, absl::string_view b_name) {
  struct Field {
    absl::string_view name;
    std::string a;
    std::string b;
  };
  const auto text = [](absl::string_view value) { return std::string(value); };
  const Field fields[] = {
      {"world size", absl::StrCat(a.world_size), absl::StrCat(b.world_size)},
      {"update rule", a.rule, b.rule},
      {"gradient mode", text(NameOf(a.gradient_mode)), text(NameOf(b.gradient_mode))},
      {"partition policy", text(NameOf(a.policy)), text(NameOf(b.policy))},
      {"buckets", TextOf(a.buckets), TextOf(b.buckets)},
      {"share_parameters", text(TextOf(a.share_parameters)), text(TextOf(b.share_parameters))},
  };
  for (const Field& field : fields) {
    if (field.a == field.b) continue;
    return absl::StrFormat("%s: %s has \"%s\", %s has \"%s\"", field.name, a_name, field.a, b_name,
                           field.b);
  }
  return FirstDifference(a.space, a_name, b.space, b_name);
}

}  // namespace optshard

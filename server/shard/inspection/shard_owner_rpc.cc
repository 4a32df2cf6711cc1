#include "server/shard/inspection/shard_owner_rpc.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "common/checked_math.h"
#include "common/group_rule.h"
#include "common/membership/common_proto.h"
#include "common/name_glob.h"
#include "common/page_token.h"
#include "common/parameter_space.h"
#include "common/partition.h"
#include "common/utf8_prefix.h"
#include "server/shard/inspection/size_text.h"

namespace optshard {
namespace {

constexpr size_t kLongestNameInSummary = 200;
constexpr size_t kNamesInErrors = 10;
constexpr char kListParameters[] = "ListParameters";

// Calls `see` with every owned slice from number `first` on; stops when it returns false.
template <typename See>
void ForEachSlice(const ShardView& view, int64_t first, const See& see) {
  for (;; first += kLargestPageSize) {
    const std::vector<OwnedSlice> slices = view.Slices(first, kLargestPageSize);
    int64_t number = first;
    for (const OwnedSlice& slice : slices) {
      if (!see(number++, slice)) return;
    }
    if (slices.size() < static_cast<size_t>(kLargestPageSize)) return;
  }
}

std::string Summary(const ShardDescription& description) {
  std::string line = absl::StrFormat(
      "rank %d of %d of %s/%s: %s, %d parameters, %d elements, %s of state, step %d %s",
      description.member.rank, description.world_size, description.member.job,
      description.member.optimizer, RulesText(description.groups), description.owned_parameters,
      description.owned_elements, SizeText(description.state_bytes), description.progress.finished,
      NameOf(description.progress.outcome));
  if (!description.failure.ok()) {
    absl::StrAppend(&line, ", failed: ", description.failure.ToString());
  }
  return line;
}

std::string Summary(const OwnedSlice& slice) {
  std::string line = absl::StrFormat("%d %s %s [%s]", slice.parameter,
                                     Utf8Prefix(slice.name, kLongestNameInSummary),
                                     NameOf(slice.dtype), absl::StrJoin(slice.shape, ", "));
  if (slice.elements != ElementsOf(slice.shape)) {
    absl::StrAppendFormat(&line, " elements [%d, %d)", slice.offset_elements,
                          slice.offset_elements + slice.elements);
  }
  const auto append = [&slice](std::string* out, const std::string& slot) {
    *out += slot;
    const auto shape = slice.slot_shapes.find(slot);
    if (shape == slice.slot_shapes.end() || shape->second.empty()) return;
    absl::StrAppend(out, " [", absl::StrJoin(shape->second, ", "), "]");
  };
  absl::StrAppendFormat(&line, " step %d: %s (%s)", slice.step,
                        slice.slots.empty() ? "no slots" : absl::StrJoin(slice.slots, ", ", append),
                        SizeText(slice.state_bytes));
  return line;
}

}  // namespace

v1::ShardDescription ToProto(const ShardDescription& description) {
  v1::ShardDescription proto;
  proto.set_summary(Summary(description));
  proto.set_job(description.member.job);
  proto.set_optimizer(description.member.optimizer);
  proto.set_rank(description.member.rank);
  proto.set_world_size(description.world_size);
  proto.set_incarnation(description.member.incarnation);
  proto.set_generation(description.generation);
  proto.set_rules(RulesText(description.groups));
  proto.set_gradient_mode(ToProto(description.gradient_mode));
  proto.set_policy(ToProto(description.policy));
  *proto.mutable_progress() = ToProto(description.progress);
  *proto.mutable_failure() = ToProto(description.failure);
  proto.set_owned_parameters(description.owned_parameters);
  proto.set_owned_elements(description.owned_elements);
  proto.set_state_bytes(description.state_bytes);
  proto.set_state_gib(static_cast<double>(description.state_bytes) / (int64_t{1} << 30));
  proto.set_snapshot_memory_bytes(description.snapshot_memory_bytes);
  proto.set_snapshot_used_bytes(description.snapshot_used_bytes);
  proto.set_bucket_count(description.bucket_count);
  proto.set_phase(static_cast<v1::RankPhase>(description.activity.phase));
  proto.set_phase_us(absl::ToInt64Microseconds(description.activity.lasts));
  for (size_t g = 0; g < description.groups.size(); ++g) {
    v1::GroupDescription& group = *proto.add_groups();
    group.set_group(static_cast<int32_t>(g));
    group.set_rule(description.groups[g].name);
    group.set_hyperparameters(description.groups[g].hyperparameters.ToString());
    // Thousands of groups: the first of them, rather than a reply that no client takes.
    if (proto.ByteSizeLong() > kPageBytes) break;
  }
  return proto;
}

v1::OwnedParameter ToProto(const OwnedSlice& slice) {
  v1::OwnedParameter proto;
  proto.set_summary(Summary(slice));
  proto.set_parameter(slice.parameter);
  proto.set_name(slice.name);
  for (const int64_t extent : slice.shape) proto.add_shape(extent);
  proto.set_group(slice.group);
  proto.set_offset_elements(slice.offset_elements);
  proto.set_elements(slice.elements);
  proto.set_step(slice.step);
  for (const std::string& slot : slice.slots) proto.add_slots(slot);
  for (const auto& [slot, shape] : slice.slot_shapes) {
    if (shape.empty()) continue;
    v1::SlotShape& slot_shape = *proto.add_slot_shapes();
    slot_shape.set_slot(slot);
    for (const int64_t extent : shape) slot_shape.add_shape(extent);
  }
  proto.set_state_bytes(slice.state_bytes);
  proto.set_dtype(static_cast<v1::DType>(slice.dtype));
  proto.set_gradient_dtype(static_cast<v1::DType>(slice.gradient_dtype));
  return proto;
}

absl::StatusOr<v1::ListParametersResponse> ListParameters(
    const ShardView& view, const v1::ListParametersRequest& request) {
  const absl::StatusOr<int> page_size =
      PageSize(request.page_size(), kDefaultPageSize, kLargestPageSize);
  if (!page_size.ok()) return page_size.status();
  const absl::StatusOr<int64_t> first = ParsePageToken(request.page_token(), kListParameters);
  if (!first.ok()) return first.status();
  const absl::Status valid = CheckGlob("name", request.name());
  if (!valid.ok()) return valid;
  v1::ListParametersResponse response;
  size_t bytes = 0;
  bool seen = false;
  // The page ends before the first slice that is too much.
  ForEachSlice(view, *first, [&](int64_t number, const OwnedSlice& slice) {
    seen = true;
    if (!MatchesGlob(slice.name, request.name())) return true;
    if (response.parameters_size() == *page_size || bytes > kPageBytes) {
      response.set_next_page_token(PageToken(number));
      return false;
    }
    v1::OwnedParameter& parameter = *response.add_parameters();
    parameter = ToProto(slice);
    bytes += parameter.ByteSizeLong();
    return true;
  });
  if (!seen && *first > 0) return ForeignPageToken(request.page_token(), kListParameters);
  const ShardDescription description = view.Describe();
  response.set_summary(absl::StrFormat(
      "rank %d owns %d parameters, %s of state; this page has %d slices%s", description.member.rank,
      description.owned_parameters, SizeText(description.state_bytes), response.parameters_size(),
      response.next_page_token().empty() ? ", the last ones" : ", there are more"));
  return response;
}

absl::StatusOr<SlotRange> FindSlotRange(const ShardView& view, const v1::ReadSlotRequest& request) {
  if (request.parameter() < 0 || request.offset_elements() < 0 || request.elements() < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("parameter %d, offset_elements %d, elements %d: none may be negative",
                        request.parameter(), request.offset_elements(), request.elements()));
  }
  if (!CheckedAdd(request.offset_elements(), request.elements()).has_value()) {
    return absl::OutOfRangeError(absl::StrFormat("no parameter has %d elements from %d on",
                                                 request.elements(), request.offset_elements()));
  }
  SlotRange range;
  range.parameter = request.name().empty() ? request.parameter() : -1;
  range.offset_elements = request.offset_elements();
  std::vector<std::string> names;
  int64_t reached = request.offset_elements();
  absl::optional<int64_t> all;  // of a slot with a shape of its own
  ForEachSlice(view, 0, [&](int64_t, const OwnedSlice& slice) {
    if (range.parameter < 0 && slice.name == request.name()) range.parameter = slice.parameter;
    if (names.size() < kNamesInErrors && (names.empty() || names.back() != slice.name)) {
      names.push_back(slice.name);
    }
    if (slice.parameter != range.parameter) return true;
    range.name = slice.name;
    const auto shape = slice.slot_shapes.find(request.slot());
    if (shape != slice.slot_shapes.end()) all = ElementsOf(shape->second);
    // Slices of a parameter come in order: how far they reach without a gap.
    if (slice.offset_elements <= reached) {
      reached = std::max(reached, slice.offset_elements + slice.elements);
    }
    return true;
  });
  if (range.parameter < 0) {
    return absl::NotFoundError(absl::StrCat(
        "rank ", view.Describe().member.rank, " owns nothing of a parameter \"", request.name(),
        "\"; it owns ", names.empty() ? "nothing" : absl::StrJoin(names, ", "),
        names.size() == kNamesInErrors ? ", ..." : ""));
  }
  if (range.name.empty()) range.name = absl::StrCat("parameter ", range.parameter);
  range.elements = request.elements();
  if (range.elements == 0) {
    range.elements = all.has_value() ? *all - std::min(*all, range.offset_elements)
                                     : reached - range.offset_elements;
  }
  return range;
}

}  // namespace optshard

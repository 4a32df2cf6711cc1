#include "server/shard/state/kept_parts.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/partition.h"

namespace optshard {

absl::Status KeptParts::Check(int parameter, const ParameterSlot& slot, int64_t offset_elements,
                              int64_t elements) const {
  if (!slot.shape.has_value()) return CheckOwned(parameter, offset_elements, elements);
  absl::Status owned = CheckOwned(parameter, 0, 0);
  if (!owned.ok()) return owned;
  const int64_t all = ElementsOf(*slot.shape);
  if (offset_elements >= 0 && offset_elements <= all && elements <= all - offset_elements) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(
      absl::StrFormat("slot \"%s\" has %d element%s; %d elements from %d on were asked for",
                      slot.name, all, all == 1 ? "" : "s", elements, offset_elements));
}

absl::Status KeptParts::CheckOwned(int parameter, int64_t offset_elements, int64_t elements) const {
  const std::vector<Slice>& slices = shape->slices(rank);
  auto slice = std::lower_bound(slices.begin(), slices.end(), parameter,
                                [](const Slice& each, int of) { return each.parameter < of; });
  const ParameterSpec& spec = shape->space().parameter(parameter);
  if (slice != slices.end() && slice->parameter == parameter && offset_elements >= 0 &&
      offset_elements <= spec.elements() && store->Owns(parameter, offset_elements, elements)) {
    return absl::OkStatus();
  }
  std::vector<std::string> ranges;
  for (; slice != slices.end() && slice->parameter == parameter; ++slice) {
    ranges.push_back(absl::StrFormat("[%d, %d)", slice->offset_elements,
                                     slice->offset_elements + slice->elements));
  }
  return absl::OutOfRangeError(
      absl::StrFormat("%d elements from %d on of parameter %d \"%s\" are not all owned by rank %d, "
                      "which owns %s of "
                      "it",
                      elements, offset_elements, parameter, spec.name, rank,
                      ranges.empty() ? "nothing" : absl::StrJoin(ranges, ", ")));
}

}  // namespace optshard

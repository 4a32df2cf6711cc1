#include "common/memory_layout.h"

#include <algorithm>
#include <cstddef>

#include "common/digest.h"

namespace optshard {

int64_t AlignedElements(int64_t elements, DType dtype) {
  const int64_t unit = kAlignmentBytes / static_cast<int64_t>(SizeOf(dtype));
  return (elements + unit - 1) / unit * unit;
}

MemoryLayout::MemoryLayout(const ParameterSpace& space)
    : admission_count_(space.admission_count()) {
  size_t group_begin = 0;  // the first region of the group and admission at hand
  for (int i = 0; i < space.parameter_count(); ++i) {
    const ParameterSpec& spec = space.parameter(i);
    const int group = space.group_of(i);
    if (i > 0 &&
        (space.group_of(i - 1) != group || space.admission_of(i - 1) != space.admission_of(i))) {
      group_begin = regions_.size();
    }
    const auto found = std::find_if(regions_.begin() + static_cast<std::ptrdiff_t>(group_begin),
                                    regions_.end(), [&](const Region& r) {
                                      return r.dtype == spec.dtype &&
                                             r.gradient_dtype == spec.gradient_dtype() &&
                                             r.device == spec.device;
                                    });
    const auto region = static_cast<size_t>(found - regions_.begin());
    if (found == regions_.end()) {
      regions_.push_back(
          {group, spec.dtype, spec.gradient_dtype(), spec.device, 0, space.admission_of(i)});
    }
    places_.push_back({static_cast<int>(region), regions_[region].elements});
    regions_[region].elements += AlignedElements(spec.elements(), spec.dtype);
  }
}

uint64_t MemoryLayout::Digest(int admission) const {
  DigestBuilder digest("optshard.MemoryLayout");
  const auto end =
      std::find_if(regions_.begin(), regions_.end(),
                   [admission](const Region& region) { return region.admission > admission; });
  const auto regions = static_cast<int>(end - regions_.begin());
  digest.AddInt(regions);
  for (auto region = regions_.begin(); region != end; ++region) {
    digest.AddInt(region->group).AddInt(static_cast<int64_t>(region->dtype));
    digest.AddText(region->device);
    digest.AddInt(static_cast<int64_t>(region->gradient_dtype)).AddInt(region->elements);
  }
  const auto last = std::find_if(places_.begin(), places_.end(),
                                 [regions](const Place& place) { return place.region >= regions; });
  digest.AddInt(last - places_.begin());
  for (auto place = places_.begin(); place != last; ++place) {
    digest.AddInt(place->region).AddInt(place->offset_elements);
  }
  return digest.value();
}

}  // namespace optshard

#include "server/update/cuda/halves_table.h"

#include <cstdint>
#include <cstring>

namespace optshard {

void HalvesTable::Add(HalvesSpan span) {
  span.tiles_before = all_.tiles;
  all_.tiles += (span.elements + kHalvesTile - 1) / kHalvesTile;
  spans_.push_back(span);
  all_.span_count = static_cast<int32_t>(spans_.size());
}

void HalvesTable::CopyTo(void* to) const {
  if (!spans_.empty()) std::memcpy(to, spans_.data(), bytes());
}

HalvesArguments HalvesTable::ArgumentsAt(const void* at) const {
  HalvesArguments arguments = all_;
  arguments.spans = static_cast<const HalvesSpan*>(at);
  return arguments;
}

}  // namespace optshard

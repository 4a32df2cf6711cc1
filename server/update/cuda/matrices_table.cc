#include "server/update/cuda/matrices_table.h"

#include <cstdint>
#include <cstring>

#include "server/update/cuda/matrices_body.h"

namespace optshard {

void MatricesTable::Add(MatricesSpan span) {
  span.lines_before = all_.lines;
  span.divisions_before = all_.divisions;
  span.tiles_before = all_.tiles;
  const int64_t elements = span.count * span.rows * span.columns;
  all_.lines += span.count * (span.rows + span.columns);
  all_.divisions += kernels::DivisionsOf(span);
  all_.tiles += (elements + kMatricesTile - 1) / kMatricesTile;
  spans_.push_back(span);
  all_.span_count = static_cast<int32_t>(spans_.size());
}

void MatricesTable::CopyTo(void* to) const {
  if (!spans_.empty()) std::memcpy(to, spans_.data(), bytes());
}

MatricesArguments MatricesTable::ArgumentsAt(const void* at) const {
  MatricesArguments arguments = all_;
  arguments.spans = static_cast<const MatricesSpan*>(at);
  return arguments;
}

}  // namespace optshard

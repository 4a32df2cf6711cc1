// What the values of a slot are like.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_SLOT_STATISTICS_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_SLOT_STATISTICS_H_

#include <cstdint>

#include "absl/types/span.h"

namespace optshard {

// Sums are in double, and have the same bits on every machine: blocks of kNormBlock values are
// summed each on its own, value i of a block into partial sum i % 16 of 16, which are then added
// pairwise; the sums of the blocks are added in order. Values that are not finite are only counted.
// Thread-compatible value type.
struct SlotStatistics {
  int64_t elements = 0;
  int64_t zeros = 0;  // of either sign
  int64_t non_finite = 0;
  double sum = 0;
  double sum_of_squares = 0;
  double min = 0;  // 0 where no value is finite
  double max = 0;

  int64_t finite() const { return elements - non_finite; }
  double mean() const;  // 0 where no value is finite
  double norm() const;  // the square root of sum_of_squares

  // The values that follow: whole blocks, but for the last part of a slot. Writes 0 where one is
  // not finite. Wants the default floating-point mode.
  void Add(absl::Span<double> values);
  // Those of the part that follows, which begins with a block.
  void Add(const SlotStatistics& next);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_SLOT_STATISTICS_H_

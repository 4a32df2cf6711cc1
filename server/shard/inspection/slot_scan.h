// Goes through the values of a slot while steps go on.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_SLOT_SCAN_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_SLOT_SCAN_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/state_format.h"
#include "server/shard/inspection/shard_view.h"
#include "server/shard/inspection/slot_statistics.h"

namespace optshard {

constexpr int64_t kScanPiece = 16 << 10;  // elements; 128 KiB of memory, and whole blocks

struct SlotScan {
  StateFormat format = StateFormat::kFloat32;
  SlotStatistics statistics;
  // Of the values' steps the least and the largest.
  StepNumber first_step = 0;
  StepNumber last_step = 0;
};

// Which values to go through.
struct SlotScanRange {
  int32_t parameter = 0;
  std::string slot;
  int64_t offset_elements = 0;
  int64_t elements = 0;
};

// ShardView::ReadSlot of whichever view there is.
using ReadSlotPiece = absl::FunctionRef<absl::StatusOr<SlotRead>(
    int32_t parameter, const std::string& slot, int64_t offset_elements, absl::Span<double> out)>;

// Reads the values piece by piece. Where a step comes in between it begins anew, twice; then it
// goes on, and the values are of several steps. `proceed` is asked before each piece; an error of
// it, or of `read`, ends the scan and is returned.
absl::StatusOr<SlotScan> ScanSlot(const SlotScanRange& range, ReadSlotPiece read,
                                  absl::FunctionRef<absl::Status()> proceed);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_SLOT_SCAN_H_

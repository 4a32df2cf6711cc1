#include "server/shard/inspection/slot_scan.h"

#include <algorithm>
#include <vector>

#include "absl/types/optional.h"
#include "common/default_floating_point.h"

namespace optshard {
namespace {

constexpr int kPassesForOneStep = 3;

// Nothing where a step has come in between and that is not allowed.
absl::StatusOr<absl::optional<SlotScan>> ScanOnce(const SlotScanRange& range, ReadSlotPiece read,
                                                  absl::FunctionRef<absl::Status()> proceed,
                                                  bool may_span_steps) {
  SlotScan scan;
  std::vector<double> values(std::min(range.elements, kScanPiece));
  int64_t done = 0;
  // Once, too, for no values: it says which step that is.
  do {
    const absl::Status wanted = proceed();
    if (!wanted.ok()) return wanted;
    const int64_t elements = std::min(range.elements - done, kScanPiece);
    const absl::Span<double> piece(values.data(), elements);
    const absl::StatusOr<SlotRead> got =
        read(range.parameter, range.slot, range.offset_elements + done, piece);
    if (!got.ok()) return got.status();
    scan.format = got->format;
    if (done == 0) scan.first_step = scan.last_step = got->step;
    scan.first_step = std::min(scan.first_step, got->step);
    scan.last_step = std::max(scan.last_step, got->step);
    if (scan.first_step != scan.last_step && !may_span_steps) return absl::optional<SlotScan>();
    scan.statistics.Add(piece);
    done += elements;
  } while (done < range.elements);
  return absl::optional<SlotScan>(scan);
}

}  // namespace

absl::StatusOr<SlotScan> ScanSlot(const SlotScanRange& range, ReadSlotPiece read,
                                  absl::FunctionRef<absl::Status()> proceed) {
  const DefaultFloatingPoint default_mode;
  for (int pass = 1;; ++pass) {
    const absl::StatusOr<absl::optional<SlotScan>> scan =
        ScanOnce(range, read, proceed, pass == kPassesForOneStep);
    if (!scan.ok()) return scan.status();
    if (scan->has_value()) return **scan;
  }
}

}  // namespace optshard

// What says of memory that several processes map what it holds.
#ifndef OPTSHARD_COMMON_LINK_SEGMENT_LABEL_H_
#define OPTSHARD_COMMON_LINK_SEGMENT_LABEL_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"

namespace optshard {

// Values are stable: processes of different builds may compare them.
enum class SegmentKind : uint32_t {
  kParameters = 1,
  kGradients = 2,
  kMailbox = 3,
  kDoorbell = 4,
  kSlots = 5,
  kLedger = 6,
  kRankRecord = 7,
  kAdmission = 8,
};

// What a segment holds; in a page behind the data.
struct SegmentLabel {
  SegmentKind kind = SegmentKind::kParameters;
  Rank rank = -1;
  Generation generation = 0;   // 0: it outlives generations
  uint64_t layout_digest = 0;  // of the MemoryLayout; 0 where there is none
};

// Of a rank's memory that is laid out alike in all generations.
inline SegmentLabel LabelOf(SegmentKind kind, Rank rank, uint64_t layout_digest) {
  return {kind, rank, 0, layout_digest};
}

// "parameters"; "unknown" for none of the kinds.
absl::string_view NameOf(SegmentKind kind);

// As it lies in memory. One host: its own byte order.
struct StoredLabel {
  char magic[8];
  uint32_t protocol_version;
  uint32_t kind;
  int32_t rank;
  uint32_t reserved;
  uint64_t generation;
  uint64_t layout_digest;
  uint64_t data_bytes;
};
static_assert(sizeof(StoredLabel) == 48, "processes of different builds read it");

// Of memory of so many bytes.
StoredLabel Stored(const SegmentLabel& label, size_t bytes);

// Whether it is a label at all.
bool IsLabel(const StoredLabel& stored);
// INVALID_ARGUMENT naming the first difference with both sides; `what` the memory holds.
absl::Status CheckLabel(const StoredLabel& actual, const StoredLabel& expected,
                        const std::string& what);
// INVALID_ARGUMENT: the segment of `what` is refused, and why.
absl::Status SegmentRefused(const std::string& what, absl::string_view why);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_SEGMENT_LABEL_H_

// Memory that several processes map: a sealed memfd with a label that says what it holds.
#ifndef OPTSHARD_COMMON_LINK_SEGMENT_H_
#define OPTSHARD_COMMON_LINK_SEGMENT_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/link/memory_budget.h"
#include "common/link/protocol_version.h"
#include "common/link/unique_fd.h"

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
};

// What a segment holds; in its last page.
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

// Data first, mapped from a page boundary on (of 2 MiB where the segment is as large), then the
// label's page, which is not mapped. All of it is allocated before anybody uses it, never grows or
// shrinks, and is not inherited by forked children: one that touches it dies. Move-only;
// thread-compatible.
class Segment {
 public:
  // Zeros. RESOURCE_EXHAUSTED naming `what`, need and limit: by the budget, before anything is
  // allocated, or by the system. The bytes (whole pages, and the label's) count as reserved until
  // the segment is destroyed; `budget` must outlive it.
  static absl::StatusOr<Segment> Create(const SegmentLabel& label, size_t bytes,
                                        const std::string& what,
                                        MemoryBudget& budget = MemoryBudget::Unlimited());

  // Maps what another process has created. INVALID_ARGUMENT where it is no sealed, writable segment
  // of `bytes` bytes of this protocol version with this label: names the first difference, both
  // sides shown.
  static absl::StatusOr<Segment> Attach(UniqueFd fd, const SegmentLabel& expected, size_t bytes,
                                        const std::string& what);

  // Attach, of what an earlier process of this one's kind has created: the bytes count as reserved,
  // as Create has it, but are never refused, for they are taken already.
  static absl::StatusOr<Segment> Adopt(UniqueFd fd, const SegmentLabel& expected, size_t bytes,
                                       const std::string& what, MemoryBudget& budget);

  // The bytes of data of a segment, by its label. INVALID_ARGUMENT where there is none.
  static absl::StatusOr<size_t> BytesOf(int fd, const std::string& what);

  Segment() = default;
  Segment(Segment&& other) noexcept { *this = static_cast<Segment&&>(other); }
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  void* data() const { return data_; }  // null: no bytes
  size_t bytes() const { return bytes_; }

  // Whether the descriptor is one of this very segment.
  bool IsOf(int fd) const;

  // To be passed on; -1 after CloseDescriptor, which leaves the mapping.
  int fd() const { return fd_.get(); }
  void CloseDescriptor() { fd_ = UniqueFd(); }

 private:
  absl::Status Map(size_t bytes, const std::string& what);

  UniqueFd fd_;
  void* data_ = nullptr;  // mapped up to the end of its last page
  size_t bytes_ = 0;
  dev_t device_ = 0;  // of the memfd, with the next: which one it is
  ino_t inode_ = 0;
  pid_t process_ = 0;               // that has mapped it
  MemoryBudget* budget_ = nullptr;  // where it was reserved, if this process did
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_SEGMENT_H_

// Memory that several processes map, with a label that says what it holds: a sealed memfd, or
// memory of a device (device_segments.h).
#ifndef OPTSHARD_COMMON_LINK_SEGMENT_H_
#define OPTSHARD_COMMON_LINK_SEGMENT_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/link/memory_budget.h"
#include "common/link/segment_label.h"
#include "common/link/unique_fd.h"

namespace optshard {

// The data comes first and is mapped at a page boundary, or in memory of the host at one of 2 MiB
// if the segment is that large. The label's page follows and is not mapped. All memory is allocated
// before anybody uses the segment, which never grows or shrinks. Forked children do not inherit it:
// a child that touches it dies. Move-only; thread-compatible.
class Segment {
 public:
  // Filled with zeros. RESOURCE_EXHAUSTED names `what`, need and limit; it comes from the budget,
  // before anything is allocated, or from the system. The bytes (whole pages, and the label's)
  // count as reserved until the segment is destroyed. `budget` must outlive it.
  static absl::StatusOr<Segment> Create(const SegmentLabel& label, size_t bytes,
                                        const std::string& what,
                                        MemoryBudget& budget = MemoryBudget::Unlimited());

  // Maps a segment that another process has created. INVALID_ARGUMENT if it is not a sealed,
  // writable segment of `bytes` bytes with this label and protocol version: names the first
  // difference with both sides.
  static absl::StatusOr<Segment> Attach(UniqueFd fd, const SegmentLabel& expected, size_t bytes,
                                        const std::string& what);

  // Like Attach, for a segment of this process's predecessor. The bytes count as reserved, as with
  // Create, but are never refused: they are allocated already.
  static absl::StatusOr<Segment> Adopt(UniqueFd fd, const SegmentLabel& expected, size_t bytes,
                                       const std::string& what, MemoryBudget& budget);

  // In memory of a device, which is mapped at `memory`; `token` is of this segment alone.
  static Segment OnDevice(UniqueFd fd, std::shared_ptr<void> memory, size_t bytes, uint64_t token);

  // How many bytes of data a segment has, and what they are, according to its label.
  // INVALID_ARGUMENT if it has none.
  static absl::StatusOr<size_t> BytesOf(int fd, const std::string& what);
  static absl::StatusOr<SegmentKind> KindOf(int fd, const std::string& what);

  Segment() = default;
  Segment(Segment&& other) noexcept { *this = static_cast<Segment&&>(other); }
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  void* data() const { return data_; }  // null: no bytes
  size_t bytes() const { return bytes_; }

  // Whether the descriptor is one of this very segment, which is a memfd.
  bool IsOf(int fd) const;
  uint64_t token() const { return token_; }  // of one on a device

  // To be sent to another process. -1 after CloseDescriptor, which keeps the mapping.
  int fd() const { return fd_.get(); }
  void CloseDescriptor() { fd_ = UniqueFd(); }

 private:
  absl::Status Map(size_t bytes, const std::string& what);

  UniqueFd fd_;
  void* data_ = nullptr;  // mapped up to the end of its last page
  size_t bytes_ = 0;
  dev_t device_ = 0;  // of the memfd, with the next: which one it is
  ino_t inode_ = 0;
  pid_t process_ = 0;                // that has mapped it
  MemoryBudget* budget_ = nullptr;   // where it was reserved, if this process did
  std::shared_ptr<void> on_device_;  // null: a memfd
  uint64_t token_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_SEGMENT_H_

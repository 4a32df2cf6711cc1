// Where segments lie: in memory of the host, or of a device (device_segments.h).
#ifndef OPTSHARD_COMMON_LINK_SEGMENT_PLACE_H_
#define OPTSHARD_COMMON_LINK_SEGMENT_PLACE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/link/memory_budget.h"
#include "common/link/segment.h"
#include "common/link/unique_fd.h"

namespace optshard {

// Thread-safe.
class SegmentPlace {
 public:
  virtual ~SegmentPlace() = default;

  // Of zeros. RESOURCE_EXHAUSTED names `what` and the need.
  virtual absl::StatusOr<Segment> Create(const SegmentLabel& label, size_t bytes,
                                         const std::string& what) const = 0;

  // Maps one that another process has created. INVALID_ARGUMENT where it is none of so many bytes
  // with this label: names the first difference with both sides.
  virtual absl::StatusOr<Segment> Open(UniqueFd fd, const SegmentLabel& expected, size_t bytes,
                                       const std::string& what) const = 0;

  // Whether the descriptor is one of this very segment, which is of this place. Errors where that
  // cannot be found out now.
  virtual absl::StatusOr<bool> IsOf(const Segment& segment, int fd) const = 0;
};

class HostSegments final : public SegmentPlace {
 public:
  // What is created or opened counts as reserved; what is opened is never refused: it is allocated
  // already. The budget outlives this and its segments.
  explicit HostSegments(MemoryBudget& budget = MemoryBudget::Unlimited()) : budget_(budget) {}

  absl::StatusOr<Segment> Create(const SegmentLabel& label, size_t bytes,
                                 const std::string& what) const override {
    return Segment::Create(label, bytes, what, budget_);
  }
  absl::StatusOr<Segment> Open(UniqueFd fd, const SegmentLabel& expected, size_t bytes,
                               const std::string& what) const override {
    return Segment::Adopt(std::move(fd), expected, bytes, what, budget_);
  }
  absl::StatusOr<bool> IsOf(const Segment& segment, int fd) const override {
    return segment.IsOf(fd);
  }

 private:
  MemoryBudget& budget_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_SEGMENT_PLACE_H_

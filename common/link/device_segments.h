// Segments in memory of a device.
#ifndef OPTSHARD_COMMON_LINK_DEVICE_SEGMENTS_H_
#define OPTSHARD_COMMON_LINK_DEVICE_SEGMENTS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/device_api.h"
#include "common/link/segment.h"
#include "common/link/segment_place.h"
#include "common/link/unique_fd.h"

namespace optshard {

// Nothing but the device limits how much there is of them. Whoever has one open can write to it,
// its label too: both ends are processes of one user. Errors are also the device's, and
// DEADLINE_EXCEEDED where it does not copy a label.
class DeviceSegments final : public SegmentPlace {
 public:
  explicit DeviceSegments(std::shared_ptr<DeviceApi> device) : device_(std::move(device)) {}

  absl::StatusOr<Segment> Create(const SegmentLabel& label, size_t bytes,
                                 const std::string& what) const override;
  absl::StatusOr<Segment> Open(UniqueFd fd, const SegmentLabel& expected, size_t bytes,
                               const std::string& what) const override;
  // Maps it once more: a descriptor does not tell which memory it is of.
  absl::StatusOr<bool> IsOf(const Segment& segment, int fd) const override;

 private:
  const std::shared_ptr<DeviceApi> device_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_DEVICE_SEGMENTS_H_

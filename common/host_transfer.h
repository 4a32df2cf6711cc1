// Copies between memory of the host and that in which an optimizer's tensors lie, which may be a
// device's.
#ifndef OPTSHARD_COMMON_HOST_TRANSFER_H_
#define OPTSHARD_COMMON_HOST_TRANSFER_H_

#include <array>
#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/device_api.h"

namespace optshard {

// Memory of the host need not be pinned: it is copied through two windows that are, so that the
// device has one while the host has the other. Where the tensors are in the host's memory, too,
// every call is done when it returns, and OK. Waits for the device, and is therefore not for use
// within a step. Errors: DEADLINE_EXCEEDED naming the device, and the device's. Thread-compatible.
class HostTransfer {
 public:
  static constexpr size_t kWindowBytes = size_t{4} << 20;

  // Of tensors on `device`, which outlives this; null: in memory of the host. Deadlines are the
  // clock's. Destroying it waits for the device.
  static absl::StatusOr<HostTransfer> Create(DeviceApi* device, const Clock& clock);

  HostTransfer(HostTransfer&&) = default;

  // On which the device copies; null without one.
  void* stream() const { return stream_.get(); }

  // What follows comes behind what is on the device's stream `other` now. Nothing without a device.
  absl::Status OrderBehind(void* other);

  // `from`, of the host, is of no more use when it returns. It is there after Finish.
  absl::Status Write(void* to, const void* from, size_t bytes, absl::Time deadline);
  absl::Status Finish(absl::Time deadline);

  // Calls `take` with what lies there in order, in pieces of kWindowBytes but for the last.
  absl::Status Read(const void* from, size_t bytes, absl::Time deadline,
                    absl::FunctionRef<void(absl::string_view piece)> take);
  absl::Status Read(void* to, const void* from, size_t bytes, absl::Time deadline);

 private:
  struct Window {
    std::shared_ptr<void> memory;
    std::unique_ptr<DeviceEvent> copied;  // what the device was to copy last, if anything
  };

  HostTransfer(DeviceApi* device, const Clock* clock) : device_(device), clock_(clock) {}

  absl::Status Await(const Window& window, absl::Time deadline);
  // Behind what has been enqueued before.
  absl::Status EnqueueCopy(Window& window, void* to, const void* from, size_t bytes);

  DeviceApi* device_;
  const Clock* clock_;
  // Freed in the reverse order: the stream's work uses the windows.
  std::array<Window, 2> windows_;
  size_t next_ = 0;
  std::shared_ptr<void> stream_;
  std::unique_ptr<DeviceEvent> others_;  // of OrderBehind
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_HOST_TRANSFER_H_

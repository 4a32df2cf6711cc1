// What steps and the NCCL data plane need of one device: streams, events, memory, copies, and the
// sum in the plan's order. common/dataplane/nccl/cuda_device.h implements it with CUDA,
// tests/testing/fake_device.h on the host.
//
// Nothing here waits for the device, and there is no call that would: a step cannot synchronise
// with the host by accident. What makes streams, events and memory may; steps call of that only
// NewEvent.
#ifndef OPTSHARD_COMMON_DEVICE_API_H_
#define OPTSHARD_COMMON_DEVICE_API_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/link/unique_fd.h"

namespace optshard {

// A point in a stream's work. Destroying one is allowed at any time.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

// Thread-safe. Errors have the driver's text: INTERNAL, DATA_LOSS where what lies in the device's
// memory is not to be used, FAILED_PRECONDITION where there is no device. After one the device is
// of no more use to this process.
class DeviceApi {
 public:
  // Of AverageInOrder, which passes their addresses to the device by value.
  static constexpr int kMaxContributions = 256;

  virtual ~DeviceApi() = default;

  // As in ExecutionContext::device: "cuda:0".
  virtual const std::string& name() const = 0;
  // As in ParameterSpec::device: "cuda".
  std::string kind() const { return name().substr(0, name().find(':')); }

  // The same text for two ranks where NCCL would refuse them as being on one GPU.
  virtual absl::StatusOr<std::string> Identity() = 0;
  // The same text in all processes that see this device, whatever its name is there.
  virtual absl::StatusOr<std::string> HardwareId() = 0;

  // What they return lives at least until the last owner lets go, and until work that is on the
  // device then no longer needs it. RESOURCE_EXHAUSTED where there is not enough memory.
  virtual absl::StatusOr<std::shared_ptr<void>> NewStream() = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> NewEvent() = 0;
  virtual absl::StatusOr<std::shared_ptr<void>> Allocate(size_t bytes) = 0;
  // Memory of the host that is pinned.
  virtual absl::StatusOr<std::shared_ptr<void>> AllocateOnHost(size_t bytes) = 0;

  // Memory of the device for several processes of a host. It lives as long as one of them has it
  // mapped or holds a descriptor of it, whichever has made it. INVALID_ARGUMENT for no bytes,
  // FAILED_PRECONDITION where the device shares none.
  struct SharedMemory {
    std::shared_ptr<void> memory;
    UniqueFd descriptor;  // to be sent to another process
  };
  virtual absl::StatusOr<SharedMemory> AllocateShared(size_t bytes) = 0;
  // Maps that memory, which has so many bytes. INVALID_ARGUMENT for a descriptor of something else.
  virtual absl::StatusOr<std::shared_ptr<void>> MapShared(int descriptor, size_t bytes) = 0;

  // Puts the event behind all that is on the stream now. An event may be recorded again: who waits
  // for it already waits for the earlier point.
  virtual absl::Status Record(DeviceEvent& event, void* stream) = 0;

  // Makes later work on the stream wait for the event's last recording. An event that was never
  // recorded is waited for by nobody.
  virtual absl::Status OrderAfter(void* stream, const DeviceEvent& event) = 0;

  // Whether the device has reached the event. Does not block.
  virtual absl::StatusOr<bool> IsReached(const DeviceEvent& event) = 0;

  // Copies on the stream, between memory of the device, and to and from memory of the host that is
  // pinned: with other memory of the host the call waits. The ranges do not overlap.
  virtual absl::Status Copy(void* to, const void* from, size_t bytes, void* stream) = 0;

  // Bytes of the device's memory become zeros, on the stream.
  virtual absl::Status Zero(void* to, size_t bytes, void* stream) = 0;

  // ReduceGroups (common/dataplane/tree_average.h) on the stream, with the same bits. The
  // contributions are at most kMaxContributions, on the device, none of them null. `result` may be
  // one of them where the types are the same. The call copies what it needs of the two spans.
  virtual absl::Status AverageInOrder(absl::Span<const int> group_sizes, int divisor, DType dtype,
                                      absl::Span<const void* const> contributions, int64_t elements,
                                      void* result, void* stream) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DEVICE_API_H_

#include "common/dataplane/nccl/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_event.h"
#include "common/cuda/cuda_memory.h"
#include "common/cuda/cuda_status.h"
#include "common/cuda/current_device.h"
#include "common/cuda/exported_memory.h"
#include "common/dataplane/nccl/in_order_average.h"

namespace optshard {
namespace {

struct EventOnDevice final : DeviceEvent {
  explicit EventOnDevice(CudaEvent of_device) : event(std::move(of_device)) {}
  CudaEvent event;
};

CudaEvent& Of(DeviceEvent& event) { return static_cast<EventOnDevice&>(event).event; }
const CudaEvent& Of(const DeviceEvent& event) {
  return static_cast<const EventOnDevice&>(event).event;
}

// Makes no context on the device.
absl::StatusOr<std::string> HardwareIdOf(int device) {
  cudaDeviceProp properties;
  const absl::Status known = CudaStatus(cudaGetDeviceProperties(&properties, device),
                                        absl::StrCat("identifying cuda:", device));
  if (!known.ok()) return known;
  // As nvidia-smi writes it.
  const std::string hex =
      absl::BytesToHexString({properties.uuid.bytes, sizeof properties.uuid.bytes});
  std::string id = "GPU";
  size_t from = 0;
  for (const size_t digits : {8, 4, 4, 4, 12}) {
    absl::StrAppend(&id, "-", hex.substr(from, digits));
    from += digits;
  }
  return id;
}

// `Memory` is CudaMemory or ExportedMemory.
template <typename Memory>
std::shared_ptr<void> Held(Memory memory) {
  auto owner = std::make_shared<Memory>(std::move(memory));
  return std::shared_ptr<void>(owner, owner->data());
}

cudaStream_t StreamOf(void* stream) { return static_cast<cudaStream_t>(stream); }

class CudaDevice final : public DeviceApi {
 public:
  explicit CudaDevice(int device) : device_(device), name_(absl::StrCat("cuda:", device)) {}

  const std::string& name() const override { return name_; }

  // NCCL takes ranks with different NCCL_HOSTID for ranks of different hosts.
  absl::StatusOr<std::string> Identity() override {
    absl::StatusOr<std::string> hardware = HardwareId();
    const char* const host = std::getenv("NCCL_HOSTID");
    if (!hardware.ok() || host == nullptr) return hardware;
    return absl::StrCat(*hardware, " of NCCL_HOSTID ", host);
  }
  absl::StatusOr<std::string> HardwareId() override { return HardwareIdOf(device_); }

  absl::StatusOr<std::shared_ptr<void>> NewStream() override {
    const CurrentDevice current(device_);
    if (!current.status().ok()) return current.status();
    int least = 0;
    int greatest = 0;
    cudaStream_t stream = nullptr;
    absl::Status made = CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                   "asking for the priorities of streams");
    if (made.ok()) {
      made = CudaStatus(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
                        "making a stream");
    }
    if (!made.ok()) return made;
    return std::shared_ptr<void>(stream, [](void* made_stream) {
      static_cast<void>(cudaStreamDestroy(StreamOf(made_stream)));
    });
  }

  absl::StatusOr<std::unique_ptr<DeviceEvent>> NewEvent() override {
    const CurrentDevice current(device_);
    if (!current.status().ok()) return current.status();
    absl::StatusOr<CudaEvent> event = CudaEvent::Create();
    if (!event.ok()) return event.status();
    return std::unique_ptr<DeviceEvent>(std::make_unique<EventOnDevice>(*std::move(event)));
  }

  absl::StatusOr<std::shared_ptr<void>> Allocate(size_t bytes) override {
    return Shared([bytes] { return CudaMemory::OnDevice(bytes); });
  }
  absl::StatusOr<std::shared_ptr<void>> AllocateOnHost(size_t bytes) override {
    return Shared([bytes] { return CudaMemory::OnHost(bytes); });
  }

  absl::StatusOr<SharedMemory> AllocateShared(size_t bytes) override {
    absl::StatusOr<ExportedMemory> memory = ExportedMemory::Create(device_, bytes);
    if (!memory.ok()) return memory.status();
    absl::StatusOr<UniqueFd> descriptor = memory->Export();
    if (!descriptor.ok()) return descriptor.status();
    return SharedMemory{Held(*std::move(memory)), *std::move(descriptor)};
  }
  absl::StatusOr<std::shared_ptr<void>> MapShared(int descriptor, size_t bytes) override {
    absl::StatusOr<ExportedMemory> memory = ExportedMemory::Import(device_, descriptor, bytes);
    if (!memory.ok()) return memory.status();
    return Held(*std::move(memory));
  }

  absl::Status Record(DeviceEvent& event, void* stream) override {
    const CurrentDevice current(device_);  // whose default stream null is
    if (!current.status().ok()) return current.status();
    return Of(event).Record(StreamOf(stream));
  }

  absl::Status OrderAfter(void* stream, const DeviceEvent& event) override {
    const CurrentDevice current(device_);
    if (!current.status().ok()) return current.status();
    return Of(event).OrderOn(StreamOf(stream));
  }

  absl::StatusOr<bool> IsReached(const DeviceEvent& event) override {
    return Of(event).IsReached();
  }

  absl::Status Copy(void* to, const void* from, size_t bytes, void* stream) override {
    if (bytes == 0) return absl::OkStatus();
    const CurrentDevice current(device_);
    if (!current.status().ok()) return current.status();
    return CudaStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, StreamOf(stream)),
                      absl::StrCat("copying ", bytes, " bytes on ", name_));
  }

  absl::Status Zero(void* to, size_t bytes, void* stream) override {
    if (bytes == 0) return absl::OkStatus();
    const CurrentDevice current(device_);
    if (!current.status().ok()) return current.status();
    return CudaStatus(cudaMemsetAsync(to, 0, bytes, StreamOf(stream)),
                      absl::StrCat("setting ", bytes, " bytes on ", name_));
  }

  absl::Status AverageInOrder(absl::Span<const int> group_sizes, int divisor, DType dtype,
                              absl::Span<const void* const> contributions, int64_t elements,
                              void* result, void* stream) override {
    const CurrentDevice current(device_);
    if (!current.status().ok()) return current.status();
    InOrderSum sum;
    std::copy(contributions.begin(), contributions.end(), sum.contributions);
    std::copy(group_sizes.begin(), group_sizes.end(), sum.group_sizes);
    sum.groups = static_cast<int>(group_sizes.size());
    sum.divisor = divisor;
    return CudaStatus(LaunchInOrderAverage(dtype, sum, elements, result, StreamOf(stream)),
                      "summing a reduction");
  }

 private:
  absl::StatusOr<std::shared_ptr<void>> Shared(
      absl::FunctionRef<absl::StatusOr<CudaMemory>()> allocate) const {
    const CurrentDevice current(device_);
    if (!current.status().ok()) return current.status();
    absl::StatusOr<CudaMemory> memory = allocate();
    if (!memory.ok()) return memory.status();
    return Held(*std::move(memory));
  }

  const int device_;
  const std::string name_;
};

static_assert(InOrderSum::kMaxContributions == DeviceApi::kMaxContributions, "one limit");

}  // namespace

absl::StatusOr<std::shared_ptr<DeviceApi>> UseCudaDevice(int device) {
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  return std::shared_ptr<DeviceApi>(std::make_shared<CudaDevice>(device));
}

absl::StatusOr<int> FindCudaDevice(const std::string& hardware_id) {
  int count = 0;
  const absl::Status counted = CudaStatus(cudaGetDeviceCount(&count), "counting the GPUs");
  if (!counted.ok()) return counted;
  absl::Status identified;  // one that fails may be another one
  for (int device = 0; device < count; ++device) {
    const absl::StatusOr<std::string> id = HardwareIdOf(device);
    identified.Update(id.status());
    if (id.ok() && *id == hardware_id) return device;
  }
  if (!identified.ok()) return identified;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return absl::FailedPreconditionError(
      absl::StrCat("this process does not see ", hardware_id, " (CUDA_VISIBLE_DEVICES is ",
                   visible == nullptr ? "not set" : absl::StrCat("\"", visible, "\""),
                   "): give it the devices of all its ranks"));
}

}  // namespace optshard

#include "common/cuda/exported_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "common/checked_math.h"
#include "common/cuda/cuda_status.h"
#include "common/cuda/current_device.h"
#include "common/cuda/driver_function.h"

namespace optshard {
namespace {

struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;
};

absl::StatusOr<Driver> FindDriver() {
  Driver driver;
  absl::Status status;
  const auto find = [&status](const char* name, auto* function) {
    if (status.ok()) status = FindDriverFunction(name, function);
  };
  find("cuMemGetAllocationGranularity", &driver.granularity);
  find("cuMemCreate", &driver.create);
  find("cuMemRelease", &driver.release);
  find("cuMemExportToShareableHandle", &driver.export_handle);
  find("cuMemImportFromShareableHandle", &driver.import_handle);
  find("cuMemAddressReserve", &driver.reserve);
  find("cuMemAddressFree", &driver.free);
  find("cuMemMap", &driver.map);
  find("cuMemUnmap", &driver.unmap);
  find("cuMemSetAccess", &driver.set_access);
  find("cuDeviceGetAttribute", &driver.attribute);
  find("cuGetErrorString", &driver.error_string);
  if (!status.ok()) return status;
  return driver;
}

const absl::StatusOr<Driver>& TheDriver() {
  static const auto* const driver = new absl::StatusOr<Driver>(FindDriver());
  return *driver;
}

absl::Status DriverStatus(const Driver& driver, CUresult result, absl::string_view what) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* text = nullptr;
  driver.error_string(result, &text);
  return absl::InternalError(
      absl::StrFormat("%s: %s (%d)", what, text == nullptr ? "unknown error" : text, result));
}

CUmemAllocationProp PropertiesOn(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

absl::Status CheckExport(const Driver& driver, int device) {
  int can_export = 0;
  absl::Status status = DriverStatus(
      driver,
      driver.attribute(&can_export, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                       device),
      "asking whether memory can be exported");
  if (!status.ok() || can_export != 0) return status;
  return absl::FailedPreconditionError(absl::StrFormat(
      "cuda:%d cannot export its memory to other processes as file descriptors: keep the shard "
      "owner in the trainer's process",
      device));
}

// Of the current device, which is `device`: as CheckExport, with its context.
absl::Status CheckDriver(int device) {
  if (const cudaError_t error = cudaFree(nullptr); error != cudaSuccess) {
    return CudaStatus(error, "using a device");
  }
  const absl::StatusOr<Driver>& driver = TheDriver();
  return driver.ok() ? CheckExport(*driver, device) : driver.status();
}

absl::StatusOr<size_t> WholePages(int device, size_t bytes) {
  const Driver& driver = *TheDriver();
  const CUmemAllocationProp properties = PropertiesOn(device);
  size_t page = 0;
  absl::Status status = DriverStatus(
      driver, driver.granularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "asking for the size of a device's pages");
  if (!status.ok()) return status;
  // A peer may have said how many.
  const absl::optional<size_t> end = CheckedAdd(bytes, page - 1);
  if (bytes == 0 || !end.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("memory of cuda:%d of %d bytes was asked for", device, bytes));
  }
  return *end / page * page;
}

}  // namespace

absl::StatusOr<ExportedMemory> ExportedMemory::Unmapped(int device, size_t bytes) {
  const absl::Status status = CheckDriver(device);
  if (!status.ok()) return status;
  const auto pages = WholePages(device, bytes);
  if (!pages.ok()) return pages.status();
  return ExportedMemory(device, bytes, *pages);
}

absl::StatusOr<ExportedMemory> ExportedMemory::Create(int device, size_t bytes) {
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  auto memory = Unmapped(device, bytes);
  if (!memory.ok()) return memory;
  const Driver& driver = *TheDriver();
  const CUmemAllocationProp properties = PropertiesOn(device);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = driver.create(&handle, memory->mapped_, &properties, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return CudaAllocationStatus(cudaErrorMemoryAllocation, memory->mapped_,
                                "allocating memory of the device for several processes");
  }
  absl::Status status = DriverStatus(driver, result, "allocating memory of the device");
  if (status.ok()) status = memory->Map(handle);
  if (!status.ok()) return status;
  return memory;
}

absl::StatusOr<ExportedMemory> ExportedMemory::Import(int device, int descriptor, size_t bytes) {
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  auto memory = Unmapped(device, bytes);
  if (!memory.ok()) return memory;
  const Driver& driver = *TheDriver();
  CUmemGenericAllocationHandle handle = 0;
  absl::Status status = DriverStatus(
      driver,
      driver.import_handle(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "importing");
  if (status.ok()) status = memory->Map(handle);
  if (!status.ok()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the descriptor that was received is not that of %d bytes of memory of cuda:%d: %s", bytes,
        device, status.message()));
  }
  return memory;
}

// The handle is this object's from here on, whatever comes of it.
absl::Status ExportedMemory::Map(uint64_t handle) {
  handle_ = handle;
  const Driver& driver = *TheDriver();
  CUdeviceptr address = 0;
  absl::Status status =
      DriverStatus(driver, driver.reserve(&address, mapped_, 0, 0, 0), "reserving addresses");
  if (!status.ok()) return status;
  status = DriverStatus(driver, driver.map(address, mapped_, 0, handle_, 0),
                        "mapping memory of the device");
  if (!status.ok()) {
    driver.free(address, mapped_);
    return status;
  }
  address_ = address;
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return DriverStatus(driver, driver.set_access(address, mapped_, &access, 1),
                      "making memory of the device accessible");
}

absl::StatusOr<UniqueFd> ExportedMemory::Export() const {
  const Driver& driver = *TheDriver();
  int descriptor = -1;
  const absl::Status status = DriverStatus(
      driver,
      driver.export_handle(&descriptor, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "exporting memory of the device");
  if (!status.ok()) return status;
  return UniqueFd(descriptor);
}

ExportedMemory::~ExportedMemory() {
  if (handle_ == 0) return;
  const Driver& driver = *TheDriver();
  if (address_ != 0) {
    const CurrentDevice current(device_);
    // Unmapping does not wait for kernels.
    static_cast<void>(cudaDeviceSynchronize());
    driver.unmap(address_, mapped_);
    driver.free(address_, mapped_);
  }
  driver.release(handle_);
}

ExportedMemory& ExportedMemory::operator=(ExportedMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

}  // namespace optshard

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/dataplane/nccl/cuda_device.h"
#include "common/dataplane/nccl/nccl_library.h"
#include "common/dataplane/nccl/nccl_plane.h"
#include "common/dataplane/nccl/nccl_plane_options.h"
#include "server/device/owner_device.h"
#include "server/update/cuda/cuda_executor.h"

namespace optshard {

namespace {

absl::StatusOr<OwnerDevice> Open(int index) {
  absl::StatusOr<std::shared_ptr<DeviceApi>> device = UseCudaDevice(index);
  if (!device.ok()) return device.status();
  OwnerDevice opened;
  opened.device = *device;
  opened.make_executor =
      [index](const HostResources&) -> absl::StatusOr<std::unique_ptr<Executor>> {
    return CudaExecutor::Create(index);
  };
  opened.make_plane = [index, device = *device](const PlaneRequest& request,
                                                std::unique_ptr<DataPlane> host) {
    NcclPlaneOptions options;
    static_cast<PlaneRequest&>(options) = request;
    NcclLibraryOptions library;
    library.device = index;
    options.nccl = LoadNccl(library);
    options.device = device;
    return NcclPlane::Create(options, std::move(host));
  };
  return opened;
}

}  // namespace

absl::StatusOr<OwnerDevice> OpenOwnerDevice(const std::string& name) {
  absl::string_view number = name;
  int index = 0;
  if (!absl::ConsumePrefix(&number, "cuda:") || !absl::SimpleAtoi(number, &index)) {
    return absl::UnimplementedError(
        absl::StrCat("the parameters are on ", name,
                     ", and shard owners are on CPUs and GPUs (\"cuda:0\"): move them there before "
                     "the optimizer is made"));
  }
  return Open(index);
}

absl::StatusOr<OwnerDevice> FindOwnerDevice(const std::string& hardware_id) {
  const absl::StatusOr<int> index = FindCudaDevice(hardware_id);
  if (!index.ok()) return index.status();
  return Open(*index);
}

}  // namespace optshard

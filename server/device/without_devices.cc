#include "absl/strings/str_cat.h"
#include "server/device/owner_device.h"

namespace optshard {

absl::StatusOr<OwnerDevice> OpenOwnerDevice(const std::string& name) {
  return absl::UnimplementedError(
      absl::StrCat("the parameters are on ", name,
                   ", and this build of optshard is for CPUs: build it with --config=cuda for "
                   "GPUs, or move the parameters to the CPU before the optimizer is made"));
}

absl::StatusOr<OwnerDevice> FindOwnerDevice(const std::string& hardware_id) {
  return absl::UnimplementedError(
      absl::StrCat("the parameters are on ", hardware_id,
                   ", and this shard server is one for CPUs: use one that was built with "
                   "--config=cuda, or move the parameters to the CPU"));
}

}  // namespace optshard

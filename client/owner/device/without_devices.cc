#include "absl/strings/str_cat.h"
#include "client/owner/device/owner_device.h"

namespace optshard {

absl::StatusOr<OwnerDevice> OpenOwnerDevice(const std::string& name) {
  return absl::UnimplementedError(
      absl::StrCat("the parameters are on ", name,
                   ", and this build of optshard is for CPUs: build it with --config=cuda for "
                   "GPUs, or move the parameters to the CPU before the optimizer is made"));
}

}  // namespace optshard

#include "common/link/local_address.h"

#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace optshard {

absl::StatusOr<KernelAddress> ToKernel(const std::string& address) {
  KernelAddress result;
  // A path ends with a zero, an abstract name begins with one in place of the '@'.
  constexpr size_t kMost = sizeof(result.name.sun_path) - 1;
  const bool abstract = IsAbstract(address);
  const size_t length = abstract ? address.size() - 1 : address.size();
  if (length == 0 || address.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("socket address '", address, "' names nothing: give a path or @NAME"));
  }
  if (length > kMost) {
    return absl::InvalidArgumentError(absl::StrCat("socket address '", address, "' has ", length,
                                                   " bytes, the system takes at most ", kMost,
                                                   ": choose a shorter one"));
  }
  result.name.sun_family = AF_UNIX;
  if (abstract) {
    std::memcpy(result.name.sun_path + 1, address.data() + 1, length);
  } else {
    std::memcpy(result.name.sun_path, address.data(), length);
  }
  result.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length + 1);
  return result;
}

}  // namespace optshard

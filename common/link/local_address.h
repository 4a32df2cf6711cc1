// Addresses of Unix sockets as the kernel takes them.
#ifndef OPTSHARD_COMMON_LINK_LOCAL_ADDRESS_H_
#define OPTSHARD_COMMON_LINK_LOCAL_ADDRESS_H_

#include <sys/socket.h>
#include <sys/un.h>

#include <string>

#include "absl/status/statusor.h"

namespace optshard {

struct KernelAddress {
  sockaddr_un name = {};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

// Converts a path or "@NAME". INVALID_ARGUMENT where it is empty or longer than the kernel allows.
absl::StatusOr<KernelAddress> ToKernel(const std::string& address);

inline bool IsAbstract(const std::string& address) { return !address.empty() && address[0] == '@'; }

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_LOCAL_ADDRESS_H_

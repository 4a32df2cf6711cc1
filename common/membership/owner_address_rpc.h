// HOST:PORT as the message of proto/optshard/v1/coordinator.proto that has few bytes for numeric
// addresses: at most 11 for IPv4 and 24 for IPv6, with what a list of them adds.
#ifndef OPTSHARD_COMMON_MEMBERSHIP_OWNER_ADDRESS_RPC_H_
#define OPTSHARD_COMMON_MEMBERSHIP_OWNER_ADDRESS_RPC_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/optshard/v1/coordinator.pb.h"

namespace optshard {

// Any text; what is no numeric address is kept in full.
v1::OwnerAddress PackAddress(const std::string& address);

// The same text. INVALID_ARGUMENT for a port, a number of bytes or a text that no address has.
absl::StatusOr<std::string> UnpackAddress(const v1::OwnerAddress& proto);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMBERSHIP_OWNER_ADDRESS_RPC_H_

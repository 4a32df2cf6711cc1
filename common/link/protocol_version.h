// The version of what processes of one host tell each other.
#ifndef OPTSHARD_COMMON_LINK_PROTOCOL_VERSION_H_
#define OPTSHARD_COMMON_LINK_PROTOCOL_VERSION_H_

#include <cstdint>

namespace optshard {

// Of segments' labels and of the messages that pass descriptors on.
constexpr uint32_t kLinkProtocolVersion = 1;

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_PROTOCOL_VERSION_H_

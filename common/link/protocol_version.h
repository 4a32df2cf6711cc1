// The version of the protocol between processes of one host.
#ifndef OPTSHARD_COMMON_LINK_PROTOCOL_VERSION_H_
#define OPTSHARD_COMMON_LINK_PROTOCOL_VERSION_H_

#include <cstdint>

namespace optshard {

// Covers the labels of segments and the frames of local sockets.
constexpr uint32_t kLinkProtocolVersion = 1;

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_PROTOCOL_VERSION_H_

// File descriptors that travel beside the bytes of a Unix socket's message (SCM_RIGHTS).
#ifndef OPTSHARD_COMMON_LINK_PASSED_DESCRIPTORS_H_
#define OPTSHARD_COMMON_LINK_PASSED_DESCRIPTORS_H_

#include <sys/socket.h>

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/link/unique_fd.h"

namespace optshard {

// Room for the control part of a message with at most so many descriptors.
template <size_t kMostDescriptors>
union DescriptorRoom {
  cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int) * kMostDescriptors)];
};

// For sendmsg: puts the descriptors into the bytes of a DescriptorRoom that holds them all, and
// these into the message. Without descriptors the message stays as it is.
void PutDescriptors(absl::Span<const int> descriptors, char* room, msghdr* message);

// After recvmsg: appends the descriptors that came with the message.
void TakeDescriptors(msghdr* message, std::vector<UniqueFd>* descriptors);

// Whether a socket call failed with this error number because the other end is closed.
bool IsClosedByPeer(int error);

// RESOURCE_EXHAUSTED, for ETOOMANYREFS of sendmsg.
absl::Status TooManyDescriptorsUnderWay();

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_PASSED_DESCRIPTORS_H_

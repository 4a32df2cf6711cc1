#include "common/link/passed_descriptors.h"

#include <cerrno>
#include <cstring>

namespace optshard {

void PutDescriptors(absl::Span<const int> descriptors, char* room, msghdr* message) {
  if (descriptors.empty()) return;
  const size_t bytes = sizeof(int) * descriptors.size();
  message->msg_control = room;
  message->msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* const rights = CMSG_FIRSTHDR(message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(rights), descriptors.data(), bytes);
}

void TakeDescriptors(msghdr* message, std::vector<UniqueFd>* descriptors) {
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(fd));
      descriptors->emplace_back(fd);
    }
  }
}

bool IsClosedByPeer(int error) {
  return error == EPIPE || error == ECONNRESET || error == ENOTCONN;
}

absl::Status TooManyDescriptorsUnderWay() {
  return absl::ResourceExhaustedError(
      "too many descriptors are on their way between processes of this user: nothing was sent; "
      "raise the limit of open files (ulimit -n)");
}

}  // namespace optshard

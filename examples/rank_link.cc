#include "examples/rank_link.h"

#include <sys/socket.h>

#include "common/process/child_process.h"

namespace optshard {

void RankLink::Report(const std::string& line) {
  if (!launched_) return;
  const std::string text = line + "\n";
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t count =
        send(kLinkDescriptor, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;  // the launcher is gone, and so is this process
    sent += count;
  }
}

void RankLink::WaitForRelease() {
  char byte;
  while (launched_ && recv(kLinkDescriptor, &byte, 1, 0) > 0) {
  }
}

}  // namespace optshard

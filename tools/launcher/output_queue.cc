#include "tools/launcher/output_queue.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace optshard {
namespace {

bool WritableNow(int descriptor) {
  pollfd writable = {descriptor, POLLOUT, 0};
  return poll(&writable, 1, 0) == 1;
}

}  // namespace

void OutputQueue::Add(int descriptor, std::string text) {
  if (text.empty() || closed_.count(descriptor) != 0) return;
  bytes_ += text.size();
  texts_.push_back({descriptor, std::move(text)});
}

void OutputQueue::Flush() {
  while (!texts_.empty()) {
    const Text& text = texts_.front();
    if (closed_.count(text.descriptor) != 0) {
      Written(text.bytes.size() - first_);
      continue;
    }
    if (!WritableNow(text.descriptor)) return;
    // A pipe that poll() calls writable takes so much without waiting.
    const size_t count = std::min<size_t>(text.bytes.size() - first_, PIPE_BUF);
    const ssize_t written = write(text.descriptor, text.bytes.data() + first_, count);
    if (written >= 0) {
      Written(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      closed_.insert(text.descriptor);
    }
  }
}

void OutputQueue::Written(size_t count) {
  first_ += count;
  if (first_ < texts_.front().bytes.size()) return;
  bytes_ -= first_;
  texts_.pop_front();
  first_ = 0;
}

}  // namespace optshard

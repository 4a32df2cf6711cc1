#include "common/link/kernel_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "common/link/unique_fd.h"

namespace optshard {

absl::optional<std::string> ReadKernelFile(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return absl::nullopt;
  std::string text;
  char part[4096];
  while (true) {
    const ssize_t count = read(file.get(), part, sizeof(part));
    if (count == 0) return text;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::nullopt;
    text.append(part, static_cast<size_t>(count));
  }
}

}  // namespace optshard

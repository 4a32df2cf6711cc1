#include "common/port_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

// Of temporary names, each of which is taken by a file of somebody else.
constexpr int kAttempts = 100;

absl::Status CannotWrite(const std::string& path, int error) {
  return absl::InternalError(
      absl::StrCat("cannot write port file ", path, ": ", std::strerror(error)));
}

}  // namespace

absl::Status WritePortFile(const std::string& path, int port) {
  std::string unfinished;
  int file = -1;
  for (int attempt = 0; file < 0 && attempt < kAttempts; ++attempt) {
    unfinished = absl::StrCat(path, ".", getpid(), ".", attempt);
    file = open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (file < 0 && errno != EEXIST) return CannotWrite(path, errno);
  }
  if (file < 0) return CannotWrite(path, errno);
  const std::string text = absl::StrCat(port, "\n");
  const ssize_t written = write(file, text.data(), text.size());
  int error = written == static_cast<ssize_t>(text.size()) ? 0 : written < 0 ? errno : ENOSPC;
  if (close(file) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(unfinished.c_str(), path.c_str()) == 0) return absl::OkStatus();
  if (error == 0) error = errno;
  unlink(unfinished.c_str());
  return CannotWrite(path, error);
}

}  // namespace optshard

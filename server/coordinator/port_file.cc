#include "server/coordinator/port_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace optshard {

absl::Status WritePortFile(const std::string& path, int port) {
  const std::string unfinished = absl::StrCat(path, ".", getpid());
  std::ofstream file(unfinished);
  file << port << '\n';
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    absl::Status status = absl::InternalError(
        absl::StrCat("cannot write port file ", path, ": ", std::strerror(errno)));
    unlink(unfinished.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace optshard

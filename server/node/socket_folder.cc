#include "server/node/socket_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/link/local_address.h"

namespace optshard {

absl::Status MakeSocketFolder(const std::string& socket) {
  const std::string folder = std::filesystem::path(socket).parent_path().string();
  if (IsAbstract(socket) || folder.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot make the folder of the socket '", socket,
        "': it has none; give a path such as /run/optshard/own/socket, or leave the making out"));
  }
  if (mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  const int error = errno;
  const std::string failed =
      absl::StrCat("cannot make the folder '", folder, "' of the socket '", socket, "'");
  if (error == ENOENT || error == ENOTDIR) {
    return absl::InvalidArgumentError(
        absl::StrCat(failed, ": the folder that it is to be in is not there; make that one"));
  }
  return absl::ErrnoToStatus(error, failed);
}

}  // namespace optshard

// The operating system's file system.
#ifndef OPTSHARD_SERVER_CHECKPOINT_POSIX_FILE_SYSTEM_H_
#define OPTSHARD_SERVER_CHECKPOINT_POSIX_FILE_SYSTEM_H_

#include <memory>
#include <string>

#include "server/checkpoint/file_system.h"

namespace optshard {

// Directories are held open and their entries reached through them (openat and its family), so that
// a directory that is renamed or replaced in between is still the same one. Large writes are handed
// to the device at once, so that Sync has little left to wait for. Thread-safe.
class PosixFileSystem final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<Directory>> OpenDirectory(const std::string& path) override;
};

// Where a path leads that the user has given, links followed; the path itself where it leads
// nowhere.
std::string ResolvedPath(const std::string& path);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_POSIX_FILE_SYSTEM_H_

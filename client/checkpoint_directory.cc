#include "client/checkpoint_directory.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/status_error.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/newest_checkpoint.h"
#include "server/checkpoint/posix_file_system.h"

namespace optshard {

absl::optional<std::string> CheckpointDirectory::newest() const {
  absl::StatusOr<std::unique_ptr<Directory>> root = PosixFileSystem().OpenDirectory(path_);
  if (absl::IsNotFound(root.status())) return absl::nullopt;
  const std::unique_ptr<Directory> opened = ValueOrThrow(std::move(root));
  const NewestCheckpoint newest = ValueOrThrow(FindNewestCheckpoint(*opened, job_, optimizer_));
  if (!newest.entry.has_value()) return absl::nullopt;
  return newest.entry->name;
}

std::vector<std::string> CheckpointDirectory::blobs(const std::string& name) const {
  const std::unique_ptr<Directory> root = ValueOrThrow(PosixFileSystem().OpenDirectory(path_));
  const std::unique_ptr<CheckpointReader> checkpoint =
      ValueOrThrow(CheckpointReader::Open(ValueOrThrow(root->OpenDirectory(name))));
  std::vector<std::string> blobs;
  for (Rank rank = 0; rank < checkpoint->manifest().world_size; ++rank) {
    blobs.push_back(ValueOrThrow(checkpoint->ReadBlob(rank)).value_or(""));
  }
  return blobs;
}

}  // namespace optshard

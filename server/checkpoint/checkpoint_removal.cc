#include "server/checkpoint/checkpoint_removal.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/request_id.h"
#include "server/checkpoint/file_errors.h"

namespace optshard {
namespace {

constexpr char kMark[] = "removing.";

// What is gone is as good as removed.
absl::Status RemoveIfThere(Directory& directory, absl::string_view name) {
  absl::Status removed = directory.Remove(name);
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

// First the manifest, so that only files of what is no checkpoint any more are removed, also after
// a power failure.
absl::Status RemoveManifest(Directory& checkpoint) {
  absl::Status removed = RemoveIfThere(checkpoint, kManifestName);
  return removed.ok() ? checkpoint.Sync() : removed;
}

absl::Status RemoveFiles(Directory& checkpoint) {
  const auto files = checkpoint.List();
  if (!files.ok()) return files.status();
  for (const DirectoryEntry& file : *files) {
    if (IsRemovalMark(file.name)) continue;
    absl::Status removed = RemoveIfThere(checkpoint, file.name);
    if (!removed.ok()) return removed;
  }
  return absl::OkStatus();
}

// The own one and those of the dead.
absl::Status RemoveMarks(Directory& checkpoint, const std::string& own_mark) {
  const auto files = checkpoint.List();
  if (!files.ok()) return files.status();
  const auto own = std::find_if(files->begin(), files->end(),
                                [&](const DirectoryEntry& file) { return file.name == own_mark; });
  for (const DirectoryEntry& file : *files) {
    const bool dead = own != files->end() && own->modified_at - file.modified_at > kTakenForDead;
    if (!IsRemovalMark(file.name) || (file.name != own_mark && !dead)) continue;
    absl::Status removed = RemoveIfThere(checkpoint, file.name);
    if (!removed.ok()) return removed;
  }
  return absl::OkStatus();
}

}  // namespace

bool IsRemovalMark(absl::string_view name) { return absl::StartsWith(name, kMark); }

absl::StatusOr<Removal> RemoveCheckpoint(Directory& root, const CheckpointEntry& decided) {
  if (!ParseCheckpointName(decided.name)) {
    return absl::InvalidArgumentError(absl::StrCat(PathOf(root.path(), decided.name),
                                                   " is not the directory of a checkpoint, ",
                                                   "such as ", CheckpointNameText({1000, 0})));
  }
  auto directory = root.OpenDirectory(decided.name);
  if (absl::IsNotFound(directory.status())) return Removal::kRemoved;
  if (!directory.ok()) return directory.status();
  Directory& checkpoint = **directory;
  // 1. The mark.
  const std::string mark = absl::StrCat(kMark, NewRequestId());
  const absl::Status marked = checkpoint.CreateFile(mark).status();
  if (absl::IsNotFound(marked)) return Removal::kRemoved;
  if (!marked.ok()) {
    checkpoint.Remove(mark).IgnoreError();
    return marked;
  }
  // 2. Whether it is still as it was. What cannot be opened is there.
  const bool has_manifest = !absl::IsNotFound(checkpoint.OpenFile(kManifestName).status());
  if (has_manifest && decided.state == CheckpointState::kUncommitted) {
    absl::Status unmarked = RemoveMarks(checkpoint, mark);
    if (!unmarked.ok()) return unmarked;
    return Removal::kKept;
  }
  // 3. The manifest. Where it stays, all else does.
  absl::Status removed = RemoveManifest(checkpoint);
  if (!removed.ok()) {
    checkpoint.Remove(mark).IgnoreError();
    return removed;
  }
  // 4. The files, and last the marks.
  removed = RemoveFiles(checkpoint);
  if (removed.ok()) removed = RemoveMarks(checkpoint, mark);
  if (!removed.ok()) return removed;
  // 5. The directory. It is not empty where another process is about to remove it, or still writes:
  // it is not committed, then, and the next one that prunes clears it away.
  removed = RemoveIfThere(root, decided.name);
  if (!removed.ok() && !absl::IsFailedPrecondition(removed)) return removed;
  absl::Status synced = root.Sync();
  if (!synced.ok()) return synced;
  return Removal::kRemoved;
}

}  // namespace optshard

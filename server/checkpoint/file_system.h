// The file system as checkpoints use it: a directory that is open, and names within it. Nothing
// below it follows a link, so that what somebody else put there leads nowhere else.
//
// Names are single components: not empty, not "." or "..", without "/" and NUL, at most 255 bytes;
// INVALID_ARGUMENT otherwise. Every error names operation and path and has the system's text:
//   NOT_FOUND            there is no such file
//   ALREADY_EXISTS       there is one, and the call wants none
//   FAILED_PRECONDITION  it is a link or of another kind; a directory that is not empty
//   PERMISSION_DENIED    not allowed, or a file system that is read only
//   RESOURCE_EXHAUSTED   no space, or a quota
//   DATA_LOSS            the device failed: what was written, or is there, may be lost
// and, as absl::ErrnoToStatus has them, other codes for what is rarer; NOT_FOUND is nothing else.
// A network file system may report the failure of what it has done: NOT_FOUND of a rename whose
// request it has repeated.
#ifndef OPTSHARD_SERVER_CHECKPOINT_FILE_SYSTEM_H_
#define OPTSHARD_SERVER_CHECKPOINT_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace optshard {

// A regular file that is open. Its end closes it. Reads and writes of different ranges are
// thread-safe.
class File {
 public:
  virtual ~File() = default;

  // Writes the pieces one after the other, the first at `offset_bytes`. After an error any part of
  // them may be written.
  virtual absl::Status WriteAt(int64_t offset_bytes,
                               absl::Span<const absl::string_view> pieces) = 0;
  // How many bytes were read: fewer than asked for only at the end of the file.
  virtual absl::StatusOr<size_t> ReadAt(int64_t offset_bytes, absl::Span<char> to) = 0;
  virtual absl::StatusOr<int64_t> Size() = 0;
  // Once it has returned OK, a power failure takes nothing away that was written before. The name
  // is the directory's to keep (Directory::Sync). After an error the content is unknown: the file
  // must be written again under another name.
  virtual absl::Status Sync() = 0;

  // For messages.
  virtual const std::string& path() const = 0;
};

enum class EntryKind { kFile, kDirectory, kOther };

struct DirectoryEntry {
  std::string name;
  EntryKind kind = EntryKind::kOther;
  int64_t bytes = 0;  // of a file; a network file system may give those of a moment ago
  // When its content, or a directory's names, last changed, by the file system's clock.
  absl::Time modified_at = absl::InfinitePast();
};

// Thread-safe.
class Directory {
 public:
  virtual ~Directory() = default;

  // A new file, to write and read.
  virtual absl::StatusOr<std::unique_ptr<File>> CreateFile(absl::string_view name) = 0;
  // One that there is, to read.
  virtual absl::StatusOr<std::unique_ptr<File>> OpenFile(absl::string_view name) = 0;
  // One that there is, to write and not to read: others may write to it, elsewhere, at the same
  // time.
  virtual absl::StatusOr<std::unique_ptr<File>> OpenFileToWrite(absl::string_view name) = 0;
  virtual absl::Status CreateDirectory(absl::string_view name) = 0;
  virtual absl::StatusOr<std::unique_ptr<Directory>> OpenDirectory(absl::string_view name) = 0;
  // A file that has the name `to` is replaced, at once; by a directory, an empty directory.
  virtual absl::Status Rename(absl::string_view from, absl::string_view to) = 0;
  // Likewise of a file, but never replaces: ALREADY_EXISTS where `to` is there.
  virtual absl::Status RenameNew(absl::string_view from, absl::string_view to) = 0;
  // A file or an empty directory. A link is removed itself.
  virtual absl::Status Remove(absl::string_view name) = 0;
  // By name.
  virtual absl::StatusOr<std::vector<DirectoryEntry>> List() = 0;
  // Once it has returned OK, a power failure takes none of the names away that were created,
  // renamed or removed before.
  virtual absl::Status Sync() = 0;
  // How much an ordinary user may write.
  virtual absl::StatusOr<int64_t> FreeBytes() = 0;

  // For messages.
  virtual const std::string& path() const = 0;
};

// Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Links within `path` are followed: it is the user's own word.
  virtual absl::StatusOr<std::unique_ptr<Directory>> OpenDirectory(const std::string& path) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_FILE_SYSTEM_H_

#include "server/checkpoint/posix_file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checked_math.h"
#include "common/link/unique_fd.h"
#include "server/checkpoint/file_errors.h"

namespace optshard {
namespace {

constexpr mode_t kFileMode = 0644;
constexpr mode_t kDirectoryMode = 0755;
constexpr size_t kPiecesPerCall = 256;  // below IOV_MAX
// The kernel starts to write back what is this large without being asked to sync.
constexpr int64_t kWriteBackBytes = int64_t{1} << 20;

int Flags(int flags) { return flags | O_CLOEXEC | O_NOFOLLOW; }

class PosixFile final : public File {
 public:
  PosixFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::Status WriteAt(int64_t offset_bytes, absl::Span<const absl::string_view> pieces) override {
    const int64_t begin = offset_bytes;
    size_t piece = 0;
    size_t done = 0;  // of that piece
    while (piece < pieces.size()) {
      std::array<iovec, kPiecesPerCall> parts;
      int count = 0;
      for (size_t p = piece; p < pieces.size() && count < static_cast<int>(kPiecesPerCall); ++p) {
        const absl::string_view rest = pieces[p].substr(p == piece ? done : 0);
        parts[count++] = {const_cast<char*>(rest.data()), rest.size()};
      }
      const ssize_t written = pwritev(fd_.get(), parts.data(), count, offset_bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return FileError("write", path_, errno);
      offset_bytes += written;
      done += static_cast<size_t>(written);
      const size_t before = piece;
      while (piece < pieces.size() && done >= pieces[piece].size()) done -= pieces[piece++].size();
      if (written == 0 && piece == before) return FileError("write", path_, ENOSPC);
    }
    if (offset_bytes - begin >= kWriteBackBytes) {
      // A hint. An error of the device comes with Sync, too.
      sync_file_range(fd_.get(), begin, offset_bytes - begin, SYNC_FILE_RANGE_WRITE);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<size_t> ReadAt(int64_t offset_bytes, absl::Span<char> to) override {
    size_t done = 0;
    while (done < to.size()) {
      const ssize_t got = pread(fd_.get(), to.data() + done, to.size() - done,
                                offset_bytes + static_cast<int64_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return FileError("read", path_, errno);
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }

  absl::StatusOr<int64_t> Size() override {
    struct stat status;
    if (fstat(fd_.get(), &status) != 0) return FileError("examine", path_, errno);
    return status.st_size;
  }

  absl::Status Sync() override {
    return fsync(fd_.get()) == 0 ? absl::OkStatus() : FileError("sync", path_, errno);
  }

  const std::string& path() const override { return path_; }

 private:
  const UniqueFd fd_;
  const std::string path_;
};

EntryKind KindOf(mode_t mode) {
  return S_ISREG(mode)   ? EntryKind::kFile
         : S_ISDIR(mode) ? EntryKind::kDirectory
                         : EntryKind::kOther;
}

// For file systems whose rename always replaces: a link never does.
int LinkInstead(int directory, const char* from, const char* to) {
  if (linkat(directory, from, directory, to, 0) != 0) return errno;
  return unlinkat(directory, from, 0) == 0 ? 0 : errno;
}

// The error's number, 0 where there is none.
int RenameWithoutReplacing(int directory, const char* from, const char* to) {
  if (renameat2(directory, from, directory, to, RENAME_NOREPLACE) == 0) return 0;
  const bool unknown = errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP;
  return unknown ? LinkInstead(directory, from, to) : errno;
}

absl::StatusOr<std::vector<DirectoryEntry>> ListDirectory(int fd, const std::string& path) {
  // Reading moves the position of the open directory: it gets one of its own.
  const int own = openat(fd, ".", Flags(O_RDONLY | O_DIRECTORY));
  if (own < 0) return FileError("list", path, errno);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(fdopendir(own), &closedir);
  if (stream == nullptr) {
    const int error = errno;
    close(own);
    return FileError("list", path, error);
  }
  std::vector<DirectoryEntry> entries;
  while (true) {
    errno = 0;
    const dirent* found = readdir(stream.get());
    if (found == nullptr && errno != 0) return FileError("list", path, errno);
    if (found == nullptr) break;
    const std::string name = found->d_name;
    if (name == "." || name == "..") continue;
    struct stat status;
    if (fstatat(fd, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue;  // it has just been removed
      return FileError("examine", PathOf(path, name), errno);
    }
    const EntryKind kind = KindOf(status.st_mode);
    entries.push_back({name, kind, kind == EntryKind::kFile ? status.st_size : 0,
                       absl::TimeFromTimespec(status.st_mtim)});
  }
  std::sort(entries.begin(), entries.end(),
            [](const DirectoryEntry& a, const DirectoryEntry& b) { return a.name < b.name; });
  return entries;
}

class PosixDirectory final : public Directory {
 public:
  PosixDirectory(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::StatusOr<std::unique_ptr<File>> CreateFile(absl::string_view name) override {
    return Open("create", name, O_RDWR | O_CREAT | O_EXCL);
  }

  absl::StatusOr<std::unique_ptr<File>> OpenFile(absl::string_view name) override {
    // Opening a pipe for reading would wait for its writer.
    return Open("open", name, O_RDONLY | O_NONBLOCK);
  }

  absl::StatusOr<std::unique_ptr<File>> OpenFileToWrite(absl::string_view name) override {
    return Open("open", name, O_WRONLY | O_NONBLOCK);
  }

  absl::Status CreateDirectory(absl::string_view name) override {
    absl::Status checked = CheckEntryName(path_, name);
    if (!checked.ok()) return checked;
    if (mkdirat(fd_.get(), std::string(name).c_str(), kDirectoryMode) != 0) {
      return FileError("create directory", PathOf(path_, name), errno);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Directory>> OpenDirectory(absl::string_view name) override {
    absl::Status checked = CheckEntryName(path_, name);
    if (!checked.ok()) return checked;
    std::string path = PathOf(path_, name);
    UniqueFd fd(openat(fd_.get(), std::string(name).c_str(), Flags(O_RDONLY | O_DIRECTORY)));
    if (!fd.valid()) return FileError("open directory", path, errno);
    return std::unique_ptr<Directory>(new PosixDirectory(std::move(fd), std::move(path)));
  }

  absl::Status Rename(absl::string_view from, absl::string_view to) override {
    return RenameBy(
        [](int directory, const char* from, const char* to) {
          return renameat(directory, from, directory, to) == 0 ? 0 : errno;
        },
        from, to);
  }

  absl::Status RenameNew(absl::string_view from, absl::string_view to) override {
    return RenameBy(&RenameWithoutReplacing, from, to);
  }

  absl::Status Remove(absl::string_view name) override {
    absl::Status checked = CheckEntryName(path_, name);
    if (!checked.ok()) return checked;
    const std::string entry(name);
    if (unlinkat(fd_.get(), entry.c_str(), 0) == 0) return absl::OkStatus();
    if (errno == EISDIR && unlinkat(fd_.get(), entry.c_str(), AT_REMOVEDIR) == 0) {
      return absl::OkStatus();
    }
    return FileError("remove", PathOf(path_, name), errno);
  }

  absl::StatusOr<std::vector<DirectoryEntry>> List() override {
    return ListDirectory(fd_.get(), path_);
  }

  absl::Status Sync() override {
    return fsync(fd_.get()) == 0 ? absl::OkStatus() : FileError("sync directory", path_, errno);
  }

  absl::StatusOr<int64_t> FreeBytes() override {
    struct statvfs status;
    if (fstatvfs(fd_.get(), &status) != 0) return FileError("examine", path_, errno);
    return SaturatingMultiply(static_cast<int64_t>(status.f_bavail),
                              static_cast<int64_t>(status.f_frsize));
  }

  const std::string& path() const override { return path_; }

 private:
  absl::Status RenameBy(int (*call)(int directory, const char* from, const char* to),
                        absl::string_view from, absl::string_view to) {
    for (const absl::string_view name : {from, to}) {
      absl::Status checked = CheckEntryName(path_, name);
      if (!checked.ok()) return checked;
    }
    const int error = call(fd_.get(), std::string(from).c_str(), std::string(to).c_str());
    if (error == 0) return absl::OkStatus();
    return FileError("rename", absl::StrCat(PathOf(path_, from), " to ", to), error);
  }

  absl::StatusOr<std::unique_ptr<File>> Open(absl::string_view operation, absl::string_view name,
                                             int flags) {
    absl::Status checked = CheckEntryName(path_, name);
    if (!checked.ok()) return checked;
    std::string path = PathOf(path_, name);
    UniqueFd fd(openat(fd_.get(), std::string(name).c_str(), Flags(flags), kFileMode));
    if (!fd.valid()) {
      // What opening a link gives without following it.
      return errno == ELOOP ? absl::FailedPreconditionError(absl::StrCat(
                                  "cannot ", operation, " ", path, ": it is a symbolic link"))
                            : FileError(operation, path, errno);
    }
    struct stat status;
    if (fstat(fd.get(), &status) != 0) return FileError("examine", path, errno);
    if (!S_ISREG(status.st_mode)) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot ", operation, " ", path, ": it is not a regular file"));
    }
    return std::unique_ptr<File>(new PosixFile(std::move(fd), std::move(path)));
  }

  const UniqueFd fd_;
  const std::string path_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Directory>> PosixFileSystem::OpenDirectory(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return FileError("open directory", path, errno);
  return std::unique_ptr<Directory>(new PosixDirectory(std::move(fd), path));
}

std::string ResolvedPath(const std::string& path) {
  char* const resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return path;
  std::string result = resolved;
  std::free(resolved);
  return result;
}

}  // namespace optshard

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/link/local_address.h"
#include "common/link/local_socket.h"
#include "common/link/poll_until.h"

namespace optshard {
namespace {

constexpr mode_t kSocketMode = 0700;
constexpr int kBacklog = 128;

absl::Status Failed(const std::string& path, absl::string_view call) {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat("cannot listen at '", path, "': ", call));
}

absl::Status Taken(const std::string& path, absl::string_view by) {
  return absl::AlreadyExistsError(
      absl::StrCat("cannot listen at '", path, "': ", by, "; choose another path, or end it"));
}

absl::Status Unsuitable(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("cannot listen at '", path, "': ", why));
}

std::string LockPath(const std::string& path) { return path + ".lock"; }

// Who may write to a folder may put a socket of his own in our place.
absl::Status CheckFolder(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  struct stat status;
  if (stat(folder.c_str(), &status) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) return Failed(path, "asking for its folder");
    return Unsuitable(path, absl::StrCat("its folder '", folder, "' is not there; make it"));
  }
  if (!S_ISDIR(status.st_mode)) {
    return Unsuitable(path, absl::StrCat("'", folder, "' is no folder"));
  }
  const bool others = (status.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  if (others && (status.st_mode & S_ISVTX) == 0) {
    return Unsuitable(
        path,
        absl::StrFormat("its folder '%s' has mode %#o: other users may write to it; take that "
                        "from them, or choose another folder",
                        folder, status.st_mode & 07777));
  }
  if (status.st_uid != geteuid() && status.st_uid != 0) {
    return Unsuitable(path, absl::StrCat("its folder '", folder, "' belongs to user ",
                                         status.st_uid, ", this process runs as user ", geteuid(),
                                         "; choose a folder of your own"));
  }
  return absl::OkStatus();
}

// Who holds the lock may replace the socket. The file goes with its listener, so one that was
// opened may be another than the one that stands there once the lock is had.
absl::StatusOr<UniqueFd> Lock(const std::string& path) {
  const std::string name = LockPath(path);
  while (true) {
    UniqueFd fd(open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    if (!fd.valid()) {
      if (errno == ELOOP) return Unsuitable(path, absl::StrCat("'", name, "' is a symbolic link"));
      return Failed(path, absl::StrCat("opening the lock file '", name, "'"));
    }
    struct stat opened;
    if (fstat(fd.get(), &opened) != 0) return Failed(path, "fstat of the lock file");
    if (!S_ISREG(opened.st_mode) || opened.st_uid != geteuid()) {
      return Taken(path, absl::StrCat("'", name, "' is no lock file of this user"));
    }
    while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) return Taken(path, "a living process listens there");
      return Failed(path, absl::StrCat("locking '", name, "'"));
    }
    struct stat standing;
    if (lstat(name.c_str(), &standing) == 0 && standing.st_dev == opened.st_dev &&
        standing.st_ino == opened.st_ino) {
      return fd;
    }
  }
}

// Whether somebody who does not know of the lock listens there.
bool SomebodyListens(const KernelAddress& address) {
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return fd.valid() && (connect(fd.get(), address.get(), address.bytes) == 0 ||
                        (errno != ECONNREFUSED && errno != ENOENT));
}

// With the lock held.
absl::Status RemoveLeftOver(const std::string& path, const KernelAddress& address) {
  struct stat standing;
  if (lstat(path.c_str(), &standing) != 0) {
    return errno == ENOENT ? absl::OkStatus() : Failed(path, "asking what stands there");
  }
  if (S_ISLNK(standing.st_mode)) return Unsuitable(path, "a symbolic link stands there");
  if (!S_ISSOCK(standing.st_mode)) return Taken(path, "something that is no socket stands there");
  if (standing.st_uid != geteuid()) {
    return Taken(path, absl::StrCat("a socket of user ", standing.st_uid, " stands there"));
  }
  if (SomebodyListens(address)) return Taken(path, "a living process listens there");
  if (unlink(path.c_str()) != 0) return Failed(path, "removing what a dead process has left");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LocalListener::File> LocalListener::Bind(int fd, const LocalAddress& address) {
  const absl::StatusOr<KernelAddress> kernel = ToKernel(address);
  if (!kernel.ok()) return kernel.status();
  File file;
  if (IsAbstract(address)) {
    if (bind(fd, kernel->get(), kernel->bytes) == 0) return file;
    return errno == EADDRINUSE ? Taken(address, "a living process listens there")
                               : Failed(address, "bind");
  }
  std::error_code error;
  const std::string path = std::filesystem::absolute(address, error).string();
  if (error) return Unsuitable(address, error.message());
  absl::Status ready = CheckFolder(path);
  if (!ready.ok()) return ready;
  absl::StatusOr<UniqueFd> lock = Lock(path);
  if (!lock.ok()) return lock.status();
  file.lock = *std::move(lock);
  ready = RemoveLeftOver(path, *kernel);
  if (ready.ok() && bind(fd, kernel->get(), kernel->bytes) != 0) ready = Failed(address, "bind");
  struct stat bound = {};
  if (ready.ok() && lstat(path.c_str(), &bound) != 0) ready = Failed(address, "asking for it");
  if (!ready.ok()) {
    unlink(LockPath(path).c_str());
    return ready;
  }
  file.path = path;
  file.device = bound.st_dev;
  file.inode = bound.st_ino;
  return file;
}

absl::StatusOr<std::unique_ptr<LocalListener>> LocalListener::Listen(const LocalAddress& address) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Failed(address, "making a socket");
  // The file gets the socket's own mode, less the umask: there is no moment in which others may.
  if (fchmod(fd.get(), kSocketMode) != 0) return Failed(address, "fchmod");
  const int raw = fd.get();
  absl::StatusOr<File> file = Bind(raw, address);
  if (!file.ok()) return file.status();
  // From here on the destructor removes it.
  std::unique_ptr<LocalListener> listener(
      new LocalListener(address, std::move(fd), *std::move(file)));
  // A umask may have taken too much. Nobody can connect before it listens.
  const std::string& path = listener->file_.path;
  if (!path.empty() && chmod(path.c_str(), kSocketMode) != 0) return Failed(address, "chmod");
  if (listen(raw, kBacklog) != 0) return Failed(address, "listen");
  return listener;
}

LocalListener::LocalListener(LocalAddress address, UniqueFd fd, File file)
    : address_(std::move(address)), fd_(std::move(fd)), file_(std::move(file)), owner_(getpid()) {}

LocalListener::~LocalListener() {
  if (file_.path.empty() || owner_ != getpid()) return;
  struct stat standing;
  if (lstat(file_.path.c_str(), &standing) == 0 && standing.st_dev == file_.device &&
      standing.st_ino == file_.inode) {
    unlink(file_.path.c_str());
  }
  unlink(LockPath(file_.path).c_str());
}

absl::StatusOr<std::unique_ptr<LocalSocket>> LocalListener::Accept(absl::Time deadline) {
  while (!hung_up_.load()) {
    UniqueFd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) return std::make_unique<LocalSocket>(std::move(fd));
    const int error = errno;
    if (hung_up_.load()) break;
    if (error == EINTR || error == ECONNABORTED) continue;
    if (error != EAGAIN) {
      return absl::ErrnoToStatus(error, absl::StrCat("accepting at '", address_, "' failed"));
    }
    if (!PollUntil(fd_.get(), POLLIN, deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat("deadline reached waiting for somebody to connect to '", address_, "'"));
    }
  }
  return absl::UnavailableError(absl::StrCat("nobody listens at '", address_, "' any more"));
}

void LocalListener::HangUp() {
  hung_up_.store(true);
  shutdown(fd_.get(), SHUT_RDWR);
}

}  // namespace optshard

#include "common/isolated_object.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OPTSHARD_NO_DEEPBIND
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(OPTSHARD_NO_DEEPBIND)
constexpr int kOwnSymbolsFirst = 0;
#else
constexpr int kOwnSymbolsFirst = RTLD_DEEPBIND;
#endif

}  // namespace

bool ObjectsAreIsolated() { return kOwnSymbolsFirst != 0; }

absl::StatusOr<void*> LoadIsolated(const IsolatedObject& object) {
  const auto failed = [&](absl::string_view what, absl::string_view why) {
    return absl::FailedPreconditionError(
        absl::StrCat(object.what, " cannot be loaded: ", what, ": ", why));
  };
  if (!ObjectsAreIsolated() && dlsym(RTLD_DEFAULT, object.library_symbol) != nullptr) {
    return failed(absl::StrCat("LibTorch's ", object.library, " is in this process"),
                  "the sanitizer refuses to keep the two apart; use another configuration");
  }
  // The descriptor stays open: debuggers find the object's symbols through its name.
  const int fd = memfd_create(object.name, MFD_CLOEXEC);
  if (fd < 0) return failed("memfd_create", strerror(errno));
  absl::string_view rest = object.bytes;
  while (!rest.empty()) {
    const ssize_t written = write(fd, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return failed("writing it to memory", strerror(errno));
    rest.remove_prefix(written);
  }
  const std::string path = absl::StrCat("/proc/", getpid(), "/fd/", fd);
  void* const loaded = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | kOwnSymbolsFirst);
  if (loaded == nullptr) {
    return failed(absl::StrCat("is Debian's ", object.package, " installed?"), dlerror());
  }
  void* const entry = dlsym(loaded, object.entry);
  if (entry == nullptr) return failed("symbol", dlerror());
  return entry;
}

}  // namespace optshard

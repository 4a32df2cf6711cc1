#include "common/dataplane/gloo/gloo_loader.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

// The shared object's bytes, linked into this program (see BUILD.bazel), so that a binary needs no
// file beside it.
extern "C" const char optshard_gloo_plugin_begin[];
extern "C" const char optshard_gloo_plugin_end[];

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

// gloo::Context::getDevice(): any of the symbols that LibTorch's Gloo and Debian's have in common.
constexpr char kGlooSymbol[] = "_ZN4gloo7Context9getDeviceEv";

absl::Status Failed(absl::string_view what, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("the Gloo data plane cannot be loaded: ", what, ": ", why));
}

absl::StatusOr<MakeGlooWireFunction> Load() {
  if (!GlooIsIsolated() && dlsym(RTLD_DEFAULT, kGlooSymbol) != nullptr) {
    return Failed("LibTorch's Gloo is in this process",
                  "the sanitizer refuses to keep the two apart; use another configuration");
  }
  // The descriptor stays open: debuggers find the object's symbols through its name.
  const int fd = memfd_create("optshard_gloo", MFD_CLOEXEC);
  if (fd < 0) return Failed("memfd_create", strerror(errno));
  const char* next = optshard_gloo_plugin_begin;
  while (next < optshard_gloo_plugin_end) {
    const ssize_t written = write(fd, next, optshard_gloo_plugin_end - next);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Failed("writing it to memory", strerror(errno));
    next += written;
  }
  const std::string path = absl::StrCat("/proc/", getpid(), "/fd/", fd);
  void* const object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | kOwnSymbolsFirst);
  if (object == nullptr) return Failed("is Debian's libgloo0 installed?", dlerror());
  void* const symbol = dlsym(object, "optshard_make_gloo_wire");
  if (symbol == nullptr) return Failed("symbol", dlerror());
  return reinterpret_cast<MakeGlooWireFunction>(symbol);
}

}  // namespace

bool GlooIsIsolated() { return kOwnSymbolsFirst != 0; }

absl::StatusOr<std::unique_ptr<GlooWire>> MakeGlooWire(const GlooWire::Options& options) {
  static const auto* const loaded = new absl::StatusOr<MakeGlooWireFunction>(Load());
  if (!loaded->ok()) return loaded->status();
  std::unique_ptr<GlooWire> wire;
  absl::Status status;
  (**loaded)(options, &wire, &status);
  if (!status.ok()) return status;
  return wire;
}

}  // namespace optshard

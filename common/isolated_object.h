// Loads a shared object whose libraries must not mix with those of the process
// (docs/decisions/0002-gloo-in-its-own-shared-object.md).
#ifndef OPTSHARD_COMMON_ISOLATED_OBJECT_H_
#define OPTSHARD_COMMON_ISOLATED_OBJECT_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace optshard {

// Whether an object uses its own libraries also where others of the same names are in the process.
// False under asan and tsan, which refuse RTLD_DEEPBIND.
bool ObjectsAreIsolated();

// A shared object that is linked into this program as bytes (optshard_embedded_plugin).
struct IsolatedObject {
  const char* name;  // in debuggers and profiles
  absl::string_view bytes;
  const char* entry;          // the symbol that is looked up
  absl::string_view what;     // for errors: "the Gloo data plane"
  absl::string_view library;  // "Gloo"
  absl::string_view package;  // Debian's, which has the library: "libgloo0"
  // Of the library. LibTorch has it where it brings the library along.
  const char* library_symbol;
};

// The entry's address. The object is never unloaded. FAILED_PRECONDITION with the loader's message
// where it cannot be loaded, or where it is not isolated and LibTorch's copy of its library is in
// the process. Thread-safe.
absl::StatusOr<void*> LoadIsolated(const IsolatedObject& object);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_ISOLATED_OBJECT_H_

#include "common/cuda/library_functions.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace optshard {

LibraryFunctions::LibraryFunctions(const WantedLibrary& library)
    : library_(library), loaded_(dlopen(library.file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (loaded_ == nullptr) {
    status_ = absl::FailedPreconditionError(
        absl::StrCat("cannot load ", library.name, " (", dlerror(), "): ", library.advice));
  }
}

void* LibraryFunctions::AddressOf(const char* name) {
  if (loaded_ == nullptr) return nullptr;
  void* const found = dlsym(loaded_, name);
  if (found == nullptr) {
    status_.Update(absl::FailedPreconditionError(
        absl::StrCat(library_.file, " has no function ", name, ", so it is not ", library_.name,
                     " ", library_.versions)));
  }
  return found;
}

}  // namespace optshard

// Functions of a library that is loaded when it is first wanted: a program that links this starts
// without it.
#ifndef OPTSHARD_COMMON_CUDA_LIBRARY_FUNCTIONS_H_
#define OPTSHARD_COMMON_CUDA_LIBRARY_FUNCTIONS_H_

#include <string>

#include "absl/status/status.h"

namespace optshard {

struct WantedLibrary {
  std::string file;      // a path, or what the dynamic loader finds
  std::string name;      // for errors: "NCCL"
  std::string versions;  // "2.19 or later"
  std::string advice;    // "install libnccl2"
};

// Thread-compatible.
class LibraryFunctions {
 public:
  // Loads the library, and never unloads it. Where LibTorch has loaded one of that name, it is that
  // one.
  explicit LibraryFunctions(const WantedLibrary& library);

  template <typename Function>
  void Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(AddressOf(name));
  }

  // FAILED_PRECONDITION with the loader's text and the advice where it could not be loaded, or
  // naming the first function that it has not.
  const absl::Status& status() const { return status_; }

 private:
  void* AddressOf(const char* name);

  const WantedLibrary library_;
  void* loaded_ = nullptr;
  absl::Status status_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CUDA_LIBRARY_FUNCTIONS_H_

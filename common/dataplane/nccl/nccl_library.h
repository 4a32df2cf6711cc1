// NCCL itself, loaded when it is first wanted: a program that links this starts without it.
#ifndef OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_LIBRARY_H_
#define OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_LIBRARY_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dataplane/nccl/nccl_api.h"

namespace optshard {

struct NcclLibraryOptions {
  // A file. Empty: "libnccl.so.2", as the dynamic loader finds it. Where LibTorch has loaded one,
  // that is the same one.
  std::string path;
  int device = 0;  // of the communicators: "cuda:0" is 0
};

// FAILED_PRECONDITION where the library cannot be loaded, with the loader's text, has not all
// functions, or is not 2.19 or a later 2.x. The library is never unloaded. Needs no driver yet.
// Thread-safe.
absl::StatusOr<std::shared_ptr<NcclApi>> LoadNccl(const NcclLibraryOptions& options);

// Whether that version of NCCL will do. FAILED_PRECONDITION with what is wanted.
absl::Status CheckNcclVersion(int version);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_LIBRARY_H_

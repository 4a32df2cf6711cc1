// Errors of the file system, in one form for all that implement it.
#ifndef OPTSHARD_SERVER_CHECKPOINT_FILE_ERRORS_H_
#define OPTSHARD_SERVER_CHECKPOINT_FILE_ERRORS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace optshard {

// "cannot write /checkpoints/step-7/owner-0.safetensors: No space left on device (errno 28)", with
// the code that file_system.h gives the error. Thread-safe.
absl::Status FileError(absl::string_view operation, absl::string_view path, int error);

// Whether a name may stand in a directory (file_system.h). INVALID_ARGUMENT naming the directory
// and the name, what cannot be printed escaped. Thread-safe.
absl::Status CheckEntryName(absl::string_view directory, absl::string_view name);

std::string PathOf(absl::string_view directory, absl::string_view name);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_FILE_ERRORS_H_

// A directory that somebody names in a message.
#ifndef OPTSHARD_SERVER_CHECKPOINT_NAMED_DIRECTORY_H_
#define OPTSHARD_SERVER_CHECKPOINT_NAMED_DIRECTORY_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace optshard {

// That every process of a job understands it alike: absolute, without a component "..", of at most
// 4095 bytes, without control characters. INVALID_ARGUMENT otherwise. Thread-safe.
absl::Status CheckNamedDirectory(absl::string_view path);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_NAMED_DIRECTORY_H_

// Reads all of a checkpoint, to find what is damaged.
#ifndef OPTSHARD_SERVER_CHECKPOINT_VERIFY_H_
#define OPTSHARD_SERVER_CHECKPOINT_VERIFY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "common/cancellation.h"
#include "common/ids.h"
#include "server/checkpoint/file_system.h"

namespace optshard {

struct Damage {
  std::string file;    // its name in the directory
  std::string tensor;  // "": the file as a whole, or its header
  // What is damaged lies within these bytes of the file. 0 and 0 of a file as a whole.
  int64_t offset_bytes = 0;
  int64_t bytes = 0;
  std::string what;  // a whole sentence with path, tensor and offset
};

struct VerifyOptions {
  const Cancellation* cancellation = nullptr;  // may be null
  absl::optional<StepNumber> step;             // what the directory's name says; another is damage
  // After each block, with the bytes that were read and those that there are.
  std::function<void(int64_t done, int64_t all)> progress;
};

// Empty: it is whole. Files that are missing or cannot be read are damage, too. Errors are those of
// ReadManifest (checkpoint_list.h), without which nothing is known, and the reason of the
// cancellation. Thread-safe.
absl::StatusOr<std::vector<Damage>> VerifyCheckpoint(Directory& checkpoint,
                                                     const VerifyOptions& options = {});

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_VERIFY_H_

// One owner's part of a checkpoint: its file.
#ifndef OPTSHARD_SERVER_CHECKPOINT_OWNER_WRITER_H_
#define OPTSHARD_SERVER_CHECKPOINT_OWNER_WRITER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/cancellation.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/manifest_json.h"

namespace optshard {

// Gives `bytes` bytes of a tensor, from `offset_bytes` on. They stay as they are until the next
// call of any source. It is asked for each tensor's bytes once, in order, in pieces of at most
// kChecksumBlockBytes.
using TensorSource =
    std::function<absl::StatusOr<absl::string_view>(int64_t offset_bytes, int64_t bytes)>;

// Of a tensor that lies in memory, which outlives the source.
TensorSource InMemory(const void* bytes);

// A stretch of an array that the owner has.
struct OwnerSlice {
  int parameter = 0;
  int array = 0;  // of CheckpointParameter::arrays
  int64_t offset_elements = 0;
  int64_t elements = 0;
  TensorSource values;  // or codes
  TensorSource scales;  // of coded ones
};

struct OwnerState {
  Rank rank = 0;
  std::vector<OwnerSlice> slices;
  std::vector<ParameterCount> counts;
  absl::optional<absl::string_view> blob;  // what its trainer keeps: at most kMaxBlobBytes
};

struct OwnerWriteOptions {
  const Cancellation* cancellation = nullptr;  // may be null
  // After each piece, with the bytes of tensors that are written and those that there are.
  std::function<void(int64_t done, int64_t all)> progress;
};

// Writes the rank's file into the checkpoint's directory, and returns once it would survive a power
// failure. `parameters` are all of the optimizer: name, shape and arrays count here. Checksums are
// computed in the same pass over memory; beside what the sources need it takes the file's header,
// of at most 100 MB, and 2 MiB.
//
// After an error there is no file, or one that no manifest names: INVALID_ARGUMENT for slices that
// no array has; the sources' errors; those of files; the reason of the cancellation. Where the disk
// has too little space at the beginning, RESOURCE_EXHAUSTED says how much is missing, and nothing
// is written. Thread-safe.
absl::StatusOr<OwnerPart> WriteOwnerFile(Directory& directory,
                                         absl::Span<const CheckpointParameter> parameters,
                                         const OwnerState& state,
                                         const OwnerWriteOptions& options = {});

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_OWNER_WRITER_H_

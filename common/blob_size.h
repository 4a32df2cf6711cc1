// How much a trainer may keep beside its parameters.
#ifndef OPTSHARD_COMMON_BLOB_SIZE_H_
#define OPTSHARD_COMMON_BLOB_SIZE_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"

namespace optshard {

// A trainer's own bytes (random state, data cursor) that are kept beside its parameters, and saved
// with them.
constexpr size_t kMaxBlobBytes = size_t{64} << 10;
// INVALID_ARGUMENT naming the rank where they are more.
inline absl::Status CheckBlobSize(Rank rank, absl::string_view blob) {
  if (blob.size() <= kMaxBlobBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "the blob of rank %d has %d bytes, at most %d are kept; save what is larger to a file and "
      "keep its name",
      rank, blob.size(), kMaxBlobBytes));
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_BLOB_SIZE_H_

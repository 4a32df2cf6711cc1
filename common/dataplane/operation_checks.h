// Checks of an operation's arguments that all planes share.
#ifndef OPTSHARD_COMMON_DATAPLANE_OPERATION_CHECKS_H_
#define OPTSHARD_COMMON_DATAPLANE_OPERATION_CHECKS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/ids.h"

namespace optshard {

// Pure functions. Errors are INVALID_ARGUMENT, with the value that was given and what is allowed.

inline absl::Status CheckPublish(Rank owner, int world_size) {
  if (owner >= 0 && owner < world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("owner ", owner, " is not a rank: the world size is ", world_size));
}

inline absl::Status CheckReduce(Rank owner, int world_size, int64_t elements) {
  absl::Status valid = CheckPublish(owner, world_size);
  if (elements < 0) {
    valid.Update(absl::InvalidArgumentError(
        absl::StrCat("Reduce of ", elements, " elements: there cannot be less than none")));
  }
  return valid;
}

inline absl::Status CheckAllGather(size_t bytes_per_rank) {
  constexpr size_t kMaxBytes = size_t{1} << 20;
  if (bytes_per_rank <= kMaxBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("AllGather of ", bytes_per_rank, " bytes a rank: at most ", kMaxBytes));
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_OPERATION_CHECKS_H_

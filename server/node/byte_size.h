// Sizes as people write them: "8GiB".
#ifndef OPTSHARD_SERVER_NODE_BYTE_SIZE_H_
#define OPTSHARD_SERVER_NODE_BYTE_SIZE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace optshard {

// A number, maybe with a fraction, and B, KiB, MiB, GiB, TiB, KB, MB, GB or TB; without any it is
// bytes. INVALID_ARGUMENT for anything else, and for less than one byte.
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_BYTE_SIZE_H_

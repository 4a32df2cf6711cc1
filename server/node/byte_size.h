// Sizes in bytes as people write them, such as "8GiB".
#ifndef OPTSHARD_SERVER_NODE_BYTE_SIZE_H_
#define OPTSHARD_SERVER_NODE_BYTE_SIZE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace optshard {

// Parses a number, which may have a fraction, and a unit: B, KiB, MiB, GiB, TiB, KB, MB, GB or TB.
// Without a unit it counts bytes. INVALID_ARGUMENT for any other text and for less than one byte.
// Thread-safe.
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_BYTE_SIZE_H_

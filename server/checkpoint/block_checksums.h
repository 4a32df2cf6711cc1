// Checksums of a tensor's bytes, one for each block, so that a slice can be checked without reading
// the rest, and damage has an offset. They are XXH3 of 64 bits, which runs at the memory's speed
// without special instructions. All functions are thread-safe.
#ifndef OPTSHARD_SERVER_CHECKPOINT_BLOCK_CHECKSUMS_H_
#define OPTSHARD_SERVER_CHECKPOINT_BLOCK_CHECKSUMS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace optshard {

// Part of the format. Small enough that a block is written while the second-level cache has it.
constexpr int64_t kChecksumBlockBytes = int64_t{1} << 20;

uint64_t ChecksumOf(absl::string_view bytes);

inline int64_t ChecksumBlocks(int64_t bytes) {
  return bytes / kChecksumBlockBytes + (bytes % kChecksumBlockBytes != 0 ? 1 : 0);
}

// As files have it: 16 hexadecimal digits, and back.
std::string ChecksumText(uint64_t checksum);
absl::optional<uint64_t> ParseChecksum(absl::string_view text);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_BLOCK_CHECKSUMS_H_

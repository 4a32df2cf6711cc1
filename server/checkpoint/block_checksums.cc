#include "server/checkpoint/block_checksums.h"

#include <xxhash.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace optshard {
namespace {

constexpr size_t kDigits = 16;

}  // namespace

uint64_t ChecksumOf(absl::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string ChecksumText(uint64_t checksum) { return absl::StrFormat("%016x", checksum); }

absl::optional<uint64_t> ParseChecksum(absl::string_view text) {
  if (text.size() != kDigits) return absl::nullopt;
  uint64_t checksum = 0;
  for (const char digit : text) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(digit)) || absl::ascii_isupper(digit)) {
      return absl::nullopt;
    }
    checksum = checksum << 4 | static_cast<uint64_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
  }
  return checksum;
}

}  // namespace optshard

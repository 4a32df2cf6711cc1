// The beginning of a text that is too long.
#ifndef OPTSHARD_COMMON_UTF8_PREFIX_H_
#define OPTSHARD_COMMON_UTF8_PREFIX_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace optshard {

// The longest prefix of at most `most_bytes` that does not end within a character. A protobuf
// string field that holds part of a character cannot be parsed.
inline absl::string_view Utf8Prefix(absl::string_view text, size_t most_bytes) {
  if (text.size() <= most_bytes) return text;
  const auto continues = [text](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  while (most_bytes > 0 && continues(most_bytes)) --most_bytes;
  return text.substr(0, most_bytes);
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_UTF8_PREFIX_H_

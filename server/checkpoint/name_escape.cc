#include "server/checkpoint/name_escape.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "server/checkpoint/strict_json.h"

namespace optshard {

std::string EscapeName(absl::string_view name) {
  const bool utf8 = JsonQuoted(name).ok();
  std::string escaped;
  for (size_t i = 0; i < name.size(); ++i) {
    const auto byte = static_cast<unsigned char>(name[i]);
    // The second byte of a control character beyond ASCII follows the first one.
    const bool control = HasControlCharacters(name.substr(i, 2)) &&
                         (byte == 0xc2 || HasControlCharacters(name.substr(i, 1)));
    const bool second =
        i > 0 && byte >= 0x80 && byte < 0xa0 && static_cast<unsigned char>(name[i - 1]) == 0xc2;
    if (byte == '%' || control || second || (byte >= 0x80 && !utf8)) {
      absl::StrAppendFormat(&escaped, "%%%02X", byte);
    } else {
      escaped += name[i];
    }
  }
  return escaped;
}

absl::optional<std::string> UnescapeName(absl::string_view escaped) {
  std::string name;
  for (size_t i = 0; i < escaped.size(); ++i) {
    if (escaped[i] != '%') {
      name += escaped[i];
      continue;
    }
    const absl::string_view digits = escaped.substr(i + 1, 2);
    if (digits.size() < 2) return absl::nullopt;
    for (const char digit : digits) {
      if (!absl::ascii_isxdigit(static_cast<unsigned char>(digit))) return absl::nullopt;
    }
    name += absl::HexStringToBytes(digits);
    i += 2;
  }
  return name;
}

}  // namespace optshard

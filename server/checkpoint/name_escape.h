// Names of parameters, which may hold any bytes, in files, which hold text.
#ifndef OPTSHARD_SERVER_CHECKPOINT_NAME_ESCAPE_H_
#define OPTSHARD_SERVER_CHECKPOINT_NAME_ESCAPE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace optshard {

// "%" and control characters become "%" and two hexadecimal digits a byte, and so do all bytes
// beyond ASCII of a name that is not UTF-8. Most names stay as they are. Thread-safe.
std::string EscapeName(absl::string_view name);

// Nothing where a "%" is not followed by two digits.
absl::optional<std::string> UnescapeName(absl::string_view escaped);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_NAME_ESCAPE_H_

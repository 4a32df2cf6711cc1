#include "common/request_limits.h"

#include "absl/strings/str_cat.h"

namespace optshard {

absl::Status CheckLength(absl::string_view what, absl::string_view text, size_t most) {
  if (text.size() <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", text.size(), " bytes, expected at most ", most));
}

absl::Status CheckCount(absl::string_view what, int64_t count, int64_t most) {
  if (count <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", count, ", expected at most ", most));
}

}  // namespace optshard

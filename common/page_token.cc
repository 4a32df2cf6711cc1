#include "common/page_token.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/utf8_prefix.h"

namespace optshard {
namespace {

constexpr size_t kShownTokenBytes = 40;

}  // namespace

std::string PageToken(int64_t first) { return absl::StrCat(first); }

absl::StatusOr<int64_t> ParsePageToken(absl::string_view token, absl::string_view call) {
  int64_t first = 0;
  if (token.empty()) return first;
  if (!absl::SimpleAtoi(token, &first) || first < 0 || PageToken(first) != token) {
    return ForeignPageToken(token, call);
  }
  return first;
}

absl::Status ForeignPageToken(absl::string_view token, absl::string_view call) {
  return absl::InvalidArgumentError(
      absl::StrCat("page_token is \"", Utf8Prefix(token, kShownTokenBytes),
                   "\", expected a next_page_token that ", call, " has returned"));
}

absl::StatusOr<int> PageSize(int32_t asked, int usual, int most) {
  if (asked < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("page_size is %d, expected 0 (for %d) to %d", asked, usual, most));
  }
  return asked == 0 ? usual : std::min(asked, most);
}

}  // namespace optshard

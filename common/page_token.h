// Tokens by which the pages of a list follow each other: the number of a page's first entry.
#ifndef OPTSHARD_COMMON_PAGE_TOKEN_H_
#define OPTSHARD_COMMON_PAGE_TOKEN_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace optshard {

std::string PageToken(int64_t first);

// 0 for an empty token. INVALID_ARGUMENT (ForeignPageToken) for one that PageToken does not make.
// Whether there is such an entry is for the caller to say. `call` is what the caller calls itself.
absl::StatusOr<int64_t> ParsePageToken(absl::string_view token, absl::string_view call);

absl::Status ForeignPageToken(absl::string_view token, absl::string_view call);

// The number of entries that a request asks for: `usual` for 0, and at most `most`.
// INVALID_ARGUMENT for a negative one.
absl::StatusOr<int> PageSize(int32_t asked, int usual, int most);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_PAGE_TOKEN_H_

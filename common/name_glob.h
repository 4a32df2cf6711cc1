// Patterns that people choose names by.
#ifndef OPTSHARD_COMMON_NAME_GLOB_H_
#define OPTSHARD_COMMON_NAME_GLOB_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace optshard {

constexpr size_t kMostGlobBytes = 1024;

// Whether all of the name matches: "*" stands for any text, "?" for one character of UTF-8,
// anything else for itself. An empty pattern matches every name. Takes at most the product of both
// lengths, unlike fnmatch(3). Thread-safe.
bool MatchesGlob(absl::string_view name, absl::string_view pattern);

// INVALID_ARGUMENT where it is longer than kMostGlobBytes. `field` is what the caller calls it.
absl::Status CheckGlob(absl::string_view field, absl::string_view pattern);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_NAME_GLOB_H_

// For errors about unknown names: the known one that was probably meant.
#ifndef OPTSHARD_COMMON_NEAREST_NAME_H_
#define OPTSHARD_COMMON_NEAREST_NAME_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace optshard {

// "; did you mean \"adamw\"?" with the known name that takes the fewest insertions, deletions,
// replacements and swaps of neighbours to become `name`, capital letters aside. "" where each takes
// more than a third of its length (one for short ones). Thread-safe.
std::string DidYouMean(absl::string_view name, const std::vector<std::string>& known);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_NEAREST_NAME_H_

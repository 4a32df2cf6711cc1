#include "common/name_glob.h"

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

// Where the character ends that begins at `at`.
size_t EndOfCharacter(absl::string_view text, size_t at) {
  ++at;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
  return at;
}

}  // namespace

bool MatchesGlob(absl::string_view name, absl::string_view pattern) {
  if (pattern.empty()) return true;
  size_t n = 0;
  size_t p = 0;
  // The last star, and how far into the name it reaches so far. Earlier ones need not change: what
  // comes between two stars is best found as early as possible.
  size_t star = absl::string_view::npos;
  size_t taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == '?') {
      n = EndOfCharacter(name, n);
      ++p;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++n;
      ++p;
    } else if (star != absl::string_view::npos) {
      taken = EndOfCharacter(name, taken);
      n = taken;
      p = star + 1;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

absl::Status CheckGlob(absl::string_view field, absl::string_view pattern) {
  if (pattern.size() <= kMostGlobBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", pattern.size(), " bytes, expected at most ", kMostGlobBytes));
}

}  // namespace optshard

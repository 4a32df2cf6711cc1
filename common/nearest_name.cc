#include "common/nearest_name.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

// Longer ones are no names, and comparing them takes time.
constexpr size_t kLongestName = 64;

// The optimal string alignment distance.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> distance(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) distance[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) distance[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = distance[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      distance[i][j] = std::min({distance[i - 1][j] + 1, distance[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
      }
    }
  }
  return distance[a.size()][b.size()];
}

}  // namespace

std::string DidYouMean(absl::string_view name, const std::vector<std::string>& known) {
  if (name.empty() || name.size() > kLongestName) return "";
  const std::string lower = absl::AsciiStrToLower(name);
  const std::string* nearest = nullptr;
  size_t fewest = 0;
  for (const std::string& candidate : known) {
    const size_t distance = Distance(lower, absl::AsciiStrToLower(candidate));
    if (distance > std::max<size_t>(1, candidate.size() / 3)) continue;
    if (nearest == nullptr || distance < fewest) {
      nearest = &candidate;
      fewest = distance;
    }
  }
  return nearest == nullptr ? "" : absl::StrCat("; did you mean \"", *nearest, "\"?");
}

}  // namespace optshard

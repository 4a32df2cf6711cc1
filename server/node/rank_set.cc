#include "server/node/rank_set.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace optshard {
namespace {

// Far more than a node has; a slip of the pen shall not make a set of billions.
constexpr int kMostRanks = 4096;

}  // namespace

absl::StatusOr<std::set<Rank>> ParseRankSet(absl::string_view text) {
  std::set<Rank> ranks;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const auto refused = [&](absl::string_view why) {
      return absl::InvalidArgumentError(
          absl::StrCat("ranks \"", text, "\": \"", part, "\" ", why,
                       "; write numbers and ranges such as 0-3 or 0,2-5"));
    };
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(part, absl::MaxSplits('-', 1));
    Rank first = 0;
    if (!absl::SimpleAtoi(ends.first, &first) || first < 0) return refused("is no rank");
    Rank last = first;
    if (ends.second.data() != nullptr && part.find('-') != absl::string_view::npos &&
        !absl::SimpleAtoi(ends.second, &last)) {
      return refused("is no range");
    }
    if (last < first) return refused("ends before it begins");
    if (last - first >= kMostRanks) return refused("has more ranks than a node can");
    for (Rank rank = first; rank <= last; ++rank) {
      if (!ranks.insert(rank).second) return refused("repeats a rank");
    }
  }
  return ranks;
}

std::string RankSetText(const std::set<Rank>& ranks) {
  std::string text;
  for (auto first = ranks.begin(); first != ranks.end();) {
    auto last = first;
    for (auto next = std::next(last); next != ranks.end() && *next == *last + 1; ++next) {
      last = next;
    }
    absl::StrAppend(&text, text.empty() ? "" : ",", *first);
    if (*last != *first) absl::StrAppend(&text, "-", *last);
    first = std::next(last);
  }
  return text;
}

}  // namespace optshard

#include "server/node/rank_set.h"

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace optshard {
namespace {

// Far more than a node has; a slip of the pen shall not make a set of billions.
constexpr int kMostRanks = 4096;

struct Range {
  Rank first = 0;
  Rank last = 0;
};

using Ends = std::pair<absl::string_view, absl::string_view>;

absl::Status Refused(absl::string_view why) { return absl::InvalidArgumentError(why); }

bool IsRank(absl::string_view text, Rank* rank) {
  return absl::SimpleAtoi(text, rank) && *rank >= 0;
}

// "4@1"
absl::StatusOr<Range> RangeOfNode(absl::string_view part) {
  const Ends ends = absl::StrSplit(part, absl::MaxSplits('@', 1));
  int each = 0;
  int node = 0;
  if (!absl::SimpleAtoi(ends.first, &each) || each < 1) return Refused("has no number of ranks");
  if (!IsRank(ends.second, &node)) return Refused("has no number of a node");
  if (each > kMostRanks) return Refused("has more ranks than a node can");
  if (node >= std::numeric_limits<Rank>::max() / each) return Refused("has too large ranks");
  return Range{node * each, node * each + each - 1};
}

// "2", "2-5"
absl::StatusOr<Range> RangeOfRanks(absl::string_view part) {
  const Ends ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
  Range range;
  if (!IsRank(ends.first, &range.first)) return Refused("is no rank");
  range.last = range.first;
  if (absl::StrContains(part, '-') && !absl::SimpleAtoi(ends.second, &range.last)) {
    return Refused("is no range");
  }
  if (range.last == std::numeric_limits<Rank>::max()) return Refused("has too large ranks");
  if (range.last < range.first) return Refused("ends before it begins");
  if (range.last - range.first >= kMostRanks) return Refused("has more ranks than a node can");
  return range;
}

absl::Status AddRanks(absl::string_view part, std::set<Rank>& ranks) {
  const absl::StatusOr<Range> range =
      absl::StrContains(part, '@') ? RangeOfNode(part) : RangeOfRanks(part);
  if (!range.ok()) return range.status();
  for (Rank rank = range->first; rank <= range->last; ++rank) {
    if (!ranks.insert(rank).second) return Refused("repeats a rank");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::set<Rank>> ParseRankSet(absl::string_view text) {
  std::set<Rank> ranks;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const absl::Status added = AddRanks(part, ranks);
    if (added.ok()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "ranks \"", text, "\": \"", part, "\" ", added.message(),
        "; write numbers and ranges such as 0-3 or 0,2-5, or 4@1 for the ranks of node 1 where "
        "every node has four"));
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

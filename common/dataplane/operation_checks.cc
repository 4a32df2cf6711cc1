#include "common/dataplane/operation_checks.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace optshard {
namespace {

bool IsIn(absl::Span<const Rank> ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::string Listed(absl::Span<const Rank> ranks) { return absl::StrJoin(ranks, ", "); }

}  // namespace

absl::Status CheckPublish(Rank owner, absl::Span<const Rank> members,
                          absl::Span<const Rank> ranks) {
  for (size_t i = 0; i < members.size(); ++i) {
    if (!IsIn(ranks, members[i])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "member ", members[i], " is not a rank of the plane, which has ", Listed(ranks)));
    }
    if (IsIn(members.subspan(0, i), members[i])) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", members[i],
                                                     " is twice among the members ",
                                                     Listed(members), "; expected each once"));
    }
  }
  if (IsIn(members, owner)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("owner ", owner, " is not among the members ", Listed(members)));
}

absl::Status CheckReduce(const Reduction& reduction, absl::Span<const Rank> ranks,
                         int64_t elements) {
  absl::Status valid = CheckPublish(reduction.owner, reduction.members, ranks);
  size_t grouped = 0;
  bool empty = false;
  for (const int size : reduction.group_sizes) {
    empty = empty || size < 1;
    grouped += static_cast<size_t>(std::max(size, 0));
  }
  if (grouped != reduction.members.size() || empty) {
    valid.Update(absl::InvalidArgumentError(absl::StrCat(
        "groups of ", absl::StrJoin(reduction.group_sizes, ", "), " for ", reduction.members.size(),
        " members: expected as many in all, and none without any")));
  }
  if (reduction.divisor < 1) {
    valid.Update(absl::InvalidArgumentError(
        absl::StrCat("a sum is to be divided by ", reduction.divisor, "; expected at least 1")));
  }
  if (elements < 0) {
    valid.Update(absl::InvalidArgumentError(
        absl::StrCat("Reduce of ", elements, " elements: there cannot be less than none")));
  }
  return valid;
}

absl::Status CheckAllGather(size_t bytes_per_rank) {
  constexpr size_t kMaxBytes = size_t{1} << 20;
  if (bytes_per_rank <= kMaxBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("AllGather of ", bytes_per_rank, " bytes a rank: at most ", kMaxBytes));
}

}  // namespace optshard

// Sets of ranks as people write them: "0-3", "0,2-5", "4@1". The functions are thread-safe.
#ifndef OPTSHARD_SERVER_NODE_RANK_SET_H_
#define OPTSHARD_SERVER_NODE_RANK_SET_H_

#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"

namespace optshard {

// "0-3" and "0,2-5" name the ranks. "4@1" are four ranks of node 1, counted from 0, where every
// node has four: 4-7. So a manifest or a batch script that knows only which node this is can say
// them. INVALID_ARGUMENT naming the part that is none of these, or that repeats a rank.
absl::StatusOr<std::set<Rank>> ParseRankSet(absl::string_view text);

// The shortest text from which ParseRankSet makes the set.
std::string RankSetText(const std::set<Rank>& ranks);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_RANK_SET_H_

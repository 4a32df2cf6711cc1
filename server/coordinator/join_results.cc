#include "server/coordinator/join_results.h"

#include <utility>

#include "absl/algorithm/container.h"

namespace optshard {

void JoinResults::Record(Rank rank, absl::string_view request_id, Answer answer) {
  std::deque<Result>& results = by_rank_[rank];
  results.push_back({std::string(request_id), std::move(answer)});
  if (results.size() > kPerRank) results.pop_front();
}

const JoinResults::Answer* JoinResults::Find(Rank rank, absl::string_view request_id) const {
  if (request_id.empty()) return nullptr;
  const std::deque<Result>& results = by_rank_[rank];
  const auto found = absl::c_find_if(
      results, [&](const Result& result) { return result.request_id == request_id; });
  return found == results.end() ? nullptr : &found->answer;
}

bool JoinResults::Admitted(Rank rank, Incarnation incarnation) const {
  return absl::c_any_of(by_rank_[rank], [incarnation](const Result& result) {
    return result.answer.ok() && result.answer->incarnation == incarnation;
  });
}

}  // namespace optshard

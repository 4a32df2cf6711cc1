// The answers to the join attempts of a group, so that a retry gets the answer of the first
// attempt.
#ifndef OPTSHARD_SERVER_COORDINATOR_JOIN_RESULTS_H_
#define OPTSHARD_SERVER_COORDINATOR_JOIN_RESULTS_H_

#include <deque>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"
#include "common/membership/membership.h"

namespace optshard {

// Remembers the last kPerRank answers of each rank: a retry follows its first attempt within
// seconds. Thread-compatible.
class JoinResults {
 public:
  static constexpr size_t kPerRank = 8;

  using Answer = absl::StatusOr<JoinReply>;

  explicit JoinResults(int world_size) : by_rank_(world_size) {}

  // `request_id` names the attempt; no retry finds an attempt without one.
  void Record(Rank rank, absl::string_view request_id, Answer answer);

  // The answer to the attempt; null where it is not remembered. Valid until the next Record.
  const Answer* Find(Rank rank, absl::string_view request_id) const;

  // Whether an attempt was answered with that incarnation.
  bool Admitted(Rank rank, Incarnation incarnation) const;

 private:
  struct Result {
    std::string request_id;
    Answer answer;
  };

  std::vector<std::deque<Result>> by_rank_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_JOIN_RESULTS_H_

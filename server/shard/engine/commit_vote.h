// What a rank tells the others before a step is applied: the message of the commit's all-gather.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_COMMIT_VOTE_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_COMMIT_VOTE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ids.h"

namespace optshard {

struct CommitVote {
  Rank rank = 0;
  Incarnation incarnation = 0;
  Generation generation = 0;
  StepNumber step = 0;
  // Not OK: the rank gives the step up; UNAVAILABLE: because its trainer is gone. Only code and (a
  // cut) message travel.
  absl::Status prepared;
  std::vector<uint64_t> hyperparameter_digests;  // by group
  uint32_t hyperparameter_text_bytes = 0;        // of the second round, should there be one
  std::vector<bool> has_gradient;                // by parameter
  bool synchronises = false;                     // parameters, instead of stepping
};

// Every vote of a job takes the same number of bytes: about 300, 8 a group, an eighth a parameter.
size_t CommitVoteBytes(int groups, int parameters);

// `to` holds CommitVoteBytes.
void EncodeVote(const CommitVote& vote, absl::Span<char> to);

// INTERNAL where the bytes are no vote.
absl::StatusOr<CommitVote> DecodeVote(absl::Span<const char> from, int groups, int parameters);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_COMMIT_VOTE_H_

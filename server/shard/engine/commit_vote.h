// The vote that a rank sends to all others before a step is applied, by the commit's all-gather.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_COMMIT_VOTE_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_COMMIT_VOTE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "server/shard/snapshot/agreed_snapshots.h"
#include "server/shard/snapshot/snapshot_id.h"

namespace optshard {

// What a rank has come to do with the others. The numbers travel.
enum class CommitCall : uint32_t {
  kStep = 0,
  kSynchronise = 1,
  kVerify = 2,
  kConsolidate = 3,
  kLoad = 4,
  kFinishLoading = 5,
  kReplaceState = 6,
};

// Of the call, once all have voted for it.
CallEffect EffectOf(CommitCall call);

struct CommitVote {
  Rank rank = 0;
  Incarnation incarnation = 0;
  Generation generation = 0;
  StepNumber step = 0;
  // Not OK: the rank refuses the step. UNAVAILABLE: it does so because its trainer is gone. Only
  // the code and a truncated message travel.
  absl::Status prepared;
  std::vector<uint64_t> hyperparameter_digests;  // by group
  uint32_t hyperparameter_text_bytes = 0;        // of the second round, if there is one
  std::vector<bool> has_gradient;                // by parameter
  std::vector<bool> sparse = {};                 // by parameter: it is sparse; empty: none is
  CommitCall call = CommitCall::kStep;
  // What else all ranks have in common that make the call (ByteShare::subject).
  uint64_t subject = 0;
  // Of a step's first votes: the snapshots that this rank has opened since the last ones.
  SnapshotIds snapshots{};
};

// All votes of a job have the same size: about 330 bytes, 8 for each group, two bits for each
// parameter.
size_t CommitVoteBytes(int groups, int parameters);

// `to` holds CommitVoteBytes.
void EncodeVote(const CommitVote& vote, absl::Span<char> to);

// INTERNAL where the bytes are not a vote.
absl::StatusOr<CommitVote> DecodeVote(absl::Span<const char> from, int groups, int parameters);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_COMMIT_VOTE_H_

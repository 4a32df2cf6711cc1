// What all ranks do with their replicas together between steps.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "common/default_floating_point.h"
#include "common/dtype_conversion.h"
#include "common/half.h"
#include "server/shard/engine/commit_decision.h"
#include "server/shard/engine/replica_comparison.h"
#include "server/shard/engine/step_engine.h"

namespace optshard {
namespace {

// The masters become the parameter's values, except those that, rounded to `half`, are the
// parameter's value already: who edits one layer does not take from the others what is not
// published of them.
void TakeMaster(ConstBuffer parameter, DType half, int64_t elements, float* master) {
  constexpr int64_t kTile = 1024;
  uint16_t rounded[kTile];
  float widened[kTile];
  float widened_values[kTile];
  for (int64_t begin = 0; begin < elements; begin += kTile) {
    const int64_t count = std::min(kTile, elements - begin);
    const ConstBuffer from = parameter.From(begin);
    const float* values = from.As<float>();
    if (from.dtype() != DType::kFloat32) {
      Widen(half, from.data(), count, widened_values);
      values = widened_values;
    }
    Narrow(half, master + begin, count, rounded);
    Widen(half, rounded, count, widened);
    for (int64_t i = 0; i < count; ++i) {
      if (BitsOf(widened[i]) != BitsOf(values[i])) master[begin + i] = values[i];
    }
  }
}

}  // namespace

absl::optional<StepEngine::Result> StepEngine::AgreeOnCall(CommitCall call, uint64_t subject,
                                                           const absl::Status& usable,
                                                           StepOutcome others_have_begun,
                                                           absl::Time deadline) {
  record_.step = finished_ + 1;
  options_.timeline->BeginStep(finished_, options_.clock->Now(), RankPhase::kCommit);
  absl::optional<Result> failed = Settle(deadline);
  if (failed.has_value()) return failed;
  std::vector<CommitVote> votes;
  bool sent = false;
  const ReplicaMemory none(no_replica_, absl::Span<const ReplicaRegion>());
  absl::Status status = GatherRows(none, deadline);
  if (!status.ok()) return Failed(std::move(status), StepOutcome::kNotApplied);
  CommitVote vote = MakeVote(none, usable, call);
  vote.subject = subject;
  status = GatherFirstVotes(std::move(vote), deadline, &votes, &sent);
  if (!status.ok()) {
    // Others may have all votes and begin.
    return Failed(std::move(status),
                  usable.ok() && sent ? others_have_begun : StepOutcome::kNotApplied);
  }
  const CommitDecision decision = DecideCall(votes, votes[options_.rank], incarnations_);
  if (!decision.status.ok()) return GivenUp(decision, deadline);
  return absl::nullopt;
}

StepEngine::Result StepEngine::SyncParameters(absl::Span<const ReplicaTensor> replica,
                                              absl::Span<const ReplicaRegion> regions,
                                              absl::Duration timeout, void* stream) {
  const Call call(this);
  const absl::Time deadline = options_.clock->Now() + timeout;
  // Otherwise there is nothing to tear: all of it is done again, before anything else is.
  const bool tears = values_ == ParameterValues::kOfTheJob;
  const StepOutcome begun = tears ? StepOutcome::kInDoubt : StepOutcome::kNotApplied;
  absl::optional<Result> refused =
      AgreeOnCall(CommitCall::kSynchronise, 0, CheckReplica(replica, regions), begun, deadline);
  if (refused.has_value()) return *std::move(refused);
  StepOutcome unfinished = tears ? StepOutcome::kTorn : StepOutcome::kNotApplied;
  // State that was replaced in part stays so.
  StepProgress done = progress();
  if (options_.store->ledger().progress().outcome == StepOutcome::kTorn) {
    unfinished = done.outcome = StepOutcome::kTorn;
  }
  options_.store->ledger().SetProgress({finished_, unfinished, skipped_});
  // A process may have been killed before its ledger said so. No value travels before every ledger
  // does: otherwise nothing would tell that rank's old values from the new ones of the others.
  absl::Status status = Barrier(kLedgersAreMarked, deadline);
  if (!status.ok()) return Failed(std::move(status), unfinished);
  const ReplicaMemory memory(replica, regions, stream);
  options_.store->snapshots().BeginParameterWrites();
  status = exchange_->SyncParameters(finished_, memory, deadline);
  if (status.ok()) status = TakeMasters(memory, deadline);
  if (!status.ok()) return Failed(std::move(status), unfinished);
  options_.store->ledger().SetProgress(done);
  values_ = ParameterValues::kOfTheJob;
  options_.timeline->EndStep();
  Result result;
  result.info.step = finished_;
  return result;
}

StepEngine::Result StepEngine::RefuseToSynchronise(const absl::Status& reason,
                                                   absl::Time deadline) {
  const Call call(this);
  return *AgreeOnCall(CommitCall::kSynchronise, 0, reason, StepOutcome::kNotApplied, deadline);
}

absl::Status StepEngine::TakeMasters(const ReplicaMemory& replica, absl::Time deadline) {
  if (!options_.state().MayHaveMasters()) return absl::OkStatus();
  const DefaultFloatingPoint default_mode;
  const std::vector<ShardStore::OwnBucket>& buckets = options_.store->own_buckets();
  for (size_t own = 0; own < buckets.size(); ++own) {
    const ShardStore::OwnBucket& bucket = buckets[own];
    if (!options_.state().HasMaster(bucket.bucket->dtype)) continue;
    options_.store->BeginWrite(static_cast<int>(own));
    for (size_t s = 0; s < bucket.states.size(); ++s) {
      const BucketSpan& span = bucket.bucket->spans[s];
      TakeMaster(replica.tensor(span.parameter).parameter.From(span.parameter_offset_elements),
                 options_.state().PublishedAs(bucket.bucket->dtype), span.elements,
                 bucket.states[s].master.As<float>());
    }
    options_.store->EndWrite(static_cast<int>(own), finished_);
  }
  // Where ranks share one copy, no trainer may write to it before.
  return Barrier(kMastersAreTaken, deadline);
}

StepEngine::Result StepEngine::VerifyReplicas(absl::Span<const ReplicaTensor> replica,
                                              absl::Span<const ReplicaRegion> regions,
                                              absl::Duration timeout) {
  const Call call(this);
  const absl::Time deadline = options_.clock->Now() + timeout;
  absl::Status usable = CheckIsOnHost();
  if (usable.ok()) usable = CheckReplica(replica, regions);
  absl::optional<Result> refused =
      AgreeOnCall(CommitCall::kVerify, 0, usable, StepOutcome::kNotApplied, deadline);
  if (refused.has_value()) return *std::move(refused);
  absl::optional<absl::Status> difference;
  absl::Status status = CompareReplicas(replica, deadline, &difference);
  if (!status.ok()) return Failed(std::move(status), StepOutcome::kNotApplied);
  if (difference.has_value()) {
    CommitDecision differ;
    differ.status = *std::move(difference);
    return GivenUp(differ, deadline);
  }
  options_.timeline->DropStep();
  Result result;
  result.info.step = finished_;
  return result;
}

absl::Status StepEngine::CompareReplicas(absl::Span<const ReplicaTensor> replica,
                                         absl::Time deadline,
                                         absl::optional<absl::Status>* difference) {
  if (options_.world_size() == 1) return absl::OkStatus();
  const std::vector<uint64_t> digests = DigestParameters(options_.space(), replica);
  ParameterRange range{0, options_.space().parameter_count()};
  for (int32_t round = kReplicaDigests;; ++round) {
    const std::vector<uint64_t> parts = DigestParts(digests, range);
    const char* const bytes = reinterpret_cast<const char*>(parts.data());
    std::vector<char> gathered_bytes;
    absl::Status status =
        AllGather(static_cast<CommitRound>(round), {bytes, bytes + parts.size() * sizeof(parts[0])},
                  &gathered_bytes, deadline);
    if (!status.ok()) return status;
    std::vector<uint64_t> gathered(parts.size() * options_.world_size());
    std::memcpy(gathered.data(), gathered_bytes.data(), gathered_bytes.size());
    const absl::optional<int> part = FirstDifferentPart(gathered);
    if (!part.has_value()) return absl::OkStatus();
    range = PartOf(range, *part);
    if (range.size() == 1) {
      *difference = ReplicasDiffer(options_.space(), range.begin, gathered, *part);
      return absl::OkStatus();
    }
  }
}

}  // namespace optshard

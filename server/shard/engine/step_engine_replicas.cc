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
#include "common/host_transfer.h"
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

// Likewise of a parameter that may be on the transfer's device.
absl::Status TakeMasterFrom(HostTransfer& transfer, ConstBuffer parameter, DType half,
                            int64_t elements, float* master, absl::Time deadline) {
  const size_t size = SizeOf(parameter.dtype());
  return transfer.Read(parameter.data(), elements * size, deadline, [&](absl::string_view piece) {
    const auto count = static_cast<int64_t>(piece.size() / size);
    TakeMaster(ConstBuffer(piece.data(), parameter.dtype()), half, count, master);
    master += count;
  });
}

// Likewise of a master that is on the transfer's device, too.
absl::Status TakeMasterOn(HostTransfer& transfer, ConstBuffer parameter, DType half,
                          int64_t elements, float* master, absl::Time deadline) {
  constexpr int64_t kAtOnce = HostTransfer::kWindowBytes / sizeof(float);
  const size_t size = SizeOf(parameter.dtype());
  std::vector<char> values(std::min(elements, kAtOnce) * size);
  std::vector<float> masters(std::min(elements, kAtOnce));
  absl::Status status;
  for (int64_t begin = 0; begin < elements && status.ok(); begin += kAtOnce) {
    const int64_t count = std::min(kAtOnce, elements - begin);
    const size_t master_bytes = count * sizeof(float);
    status = transfer.Read(values.data(), parameter.From(begin).data(), count * size, deadline);
    if (status.ok()) status = transfer.Read(masters.data(), master + begin, master_bytes, deadline);
    if (!status.ok()) break;
    TakeMaster(ConstBuffer(values.data(), parameter.dtype()), half, count, masters.data());
    status = transfer.Write(master + begin, masters.data(), master_bytes, deadline);
  }
  return status;
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
  absl::Status taken = TakeOwnMasters(replica, deadline);
  // Where ranks share one copy, no trainer may write to it before.
  return taken.ok() ? Barrier(kMastersAreTaken, deadline) : taken;
}

absl::Status StepEngine::TakeOwnMasters(const ReplicaMemory& replica, absl::Time deadline) {
  const DefaultFloatingPoint default_mode;
  const auto take = [&](HostTransfer& transfer) {
    ShardStore& store = *options_.store;
    absl::Status status;
    for (size_t own = 0; own < store.own_buckets().size() && status.ok(); ++own) {
      const ShardStore::OwnBucket& bucket = store.own_buckets()[own];
      if (!options_.state().HasMaster(bucket.bucket->dtype)) continue;
      const DType half = options_.state().PublishedAs(bucket.bucket->dtype);
      store.BeginWrite(static_cast<int>(own));
      for (size_t s = 0; s < bucket.states.size() && status.ok(); ++s) {
        const BucketSpan& span = bucket.bucket->spans[s];
        const ConstBuffer parameter =
            replica.tensor(span.parameter).parameter.From(span.parameter_offset_elements);
        float* const master = bucket.states[s].master.As<float>();
        const auto take_one = options_.state_is_on_device() ? TakeMasterOn : TakeMasterFrom;
        status = take_one(transfer, parameter, half, span.elements, master, deadline);
      }
      if (status.ok()) store.EndWrite(static_cast<int>(own), finished_);
    }
    return status;
  };
  return options_.state_is_on_device() ? options_.device_access->Write(deadline, take)
                                       : take(transfer());
}

StepEngine::Result StepEngine::VerifyReplicas(absl::Span<const ReplicaTensor> replica,
                                              absl::Span<const ReplicaRegion> regions,
                                              absl::Duration timeout, void* stream) {
  const Call call(this);
  const absl::Time deadline = options_.clock->Now() + timeout;
  absl::optional<Result> refused = AgreeOnCall(
      CommitCall::kVerify, 0, CheckReplica(replica, regions), StepOutcome::kNotApplied, deadline);
  if (refused.has_value()) return *std::move(refused);
  absl::optional<absl::Status> difference;
  const ReplicaMemory memory(replica, regions, stream);
  absl::Status status = CompareReplicas(memory, deadline, &difference);
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

absl::Status StepEngine::CompareReplicas(const ReplicaMemory& replica, absl::Time deadline,
                                         absl::optional<absl::Status>* difference) {
  if (options_.world_size() == 1) return absl::OkStatus();
  absl::Status ordered = transfer().OrderBehind(replica.stream());
  if (!ordered.ok()) return ordered;
  const absl::StatusOr<std::vector<uint64_t>> own =
      DigestParameters(options_.space(), replica.tensors(), transfer(), deadline);
  if (!own.ok()) return own.status();
  const std::vector<uint64_t>& digests = *own;
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

#include "server/coordinator/growth_rounds.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "common/spec_growth.h"

namespace optshard {
namespace {

constexpr int kHeartbeatsInStep = 2;

absl::Status AskAgain() { return absl::NotFoundError("not all ranks have come yet"); }

std::string Name(Rank rank) { return absl::StrCat("rank ", rank); }

}  // namespace

GrowthRounds::GrowthRounds(std::string optimizer, int world_size)
    : optimizer_(std::move(optimizer)), world_size_(world_size), last_(world_size) {}

bool GrowthRounds::Knows(Rank rank, const GrowthProposal& proposal) const {
  return last_[rank].call == Call(proposal.number, proposal.phase);
}

GrowthRounds::Outcome GrowthRounds::Propose(Rank rank, const GrowthProposal& proposal,
                                            const OptimizerSpec& present, Generation next,
                                            absl::Time now, absl::Time wait_until,
                                            Callback callback, Deferred& deferred) {
  if (Knows(rank, proposal)) {
    Answer(std::move(callback), last_[rank].answer, deferred);
    return Outcome::kNone;
  }
  const Call call(proposal.number, proposal.phase);
  const Call latest = Has(rank) ? round_->came[rank] : last_[rank].call;
  if (call < latest) {
    absl::Status old = absl::FailedPreconditionError(
        absl::StrFormat("call %d of add_param_group() of rank %d, phase %d, comes after its call "
                        "%d, phase %d",
                        call.first, rank, static_cast<int>(call.second), latest.first,
                        static_cast<int>(latest.second)));
    Answer(std::move(callback), std::move(old), deferred);
    return Outcome::kNone;
  }
  // Before anything is computed from the spec.
  absl::Status valid =
      proposal.spec_digest.has_value() ? absl::OkStatus() : proposal.spec.Validate();
  if (!valid.ok()) {
    Answer(std::move(callback), errors::WithContext(valid, Name(rank)), deferred);
    return Outcome::kNone;
  }
  if (Has(rank) && call != latest) Withdraw(rank, deferred);
  std::shared_ptr<const OptimizerSpec> spec;
  if (!proposal.spec_digest.has_value()) {
    spec = std::make_shared<const OptimizerSpec>(proposal.spec);
  }
  const uint64_t digest = spec == nullptr ? *proposal.spec_digest : GrowthDigest(*spec);
  if (compared_ != nullptr && compared_digest_ == digest) spec = compared_;
  if (round_.has_value() && round_->digest == digest) spec = round_->spec;
  if (spec == nullptr) {
    // One rank at a time, since all should have the same; but everybody who differs.
    GrowthAnswer ask;
    ask.verdict = !round_.has_value() && now - asked_ < kSpecPatience ? GrowthVerdict::kAskAgain
                                                                      : GrowthVerdict::kSendSpec;
    if (!round_.has_value() && ask.verdict == GrowthVerdict::kSendSpec) asked_ = now;
    Answer(std::move(callback), ask, deferred);
    return Outcome::kNone;
  }
  if (!round_.has_value()) {
    absl::Status begun = Begin(rank, proposal, spec, digest, present);
    if (!begun.ok()) {
      Answer(std::move(callback), begun, deferred);
      return Outcome::kNone;
    }
  }
  if (!Has(rank)) {
    Compare(rank, proposal, spec.get(), digest);
    --round_->missing;
  }
  round_->came[rank] = call;
  round_->seen_in_step[rank] = 0;
  round_->deadline =
      std::min(round_->deadline, now + std::min(proposal.patience, kLongestPatience));
  Wait& wait = waits_[rank];
  // Of an attempt that the rank has given up.
  if (wait.callback) Answer(std::move(wait.callback), AskAgain(), deferred);
  wait = {wait_until, std::move(callback)};
  if (round_->missing > 0) return Outcome::kNone;
  if (!round_->failure.ok()) {
    Refuse(round_->failure, false, deferred);
    return Outcome::kNone;
  }
  compared_ = round_->spec;
  compared_digest_ = round_->digest;
  const Outcome outcome =
      round_->phase == GrowthPhase::kCompare ? Outcome::kCompared : Outcome::kCommitted;
  GrowthAnswer agreed;
  agreed.verdict = GrowthVerdict::kAgreed;
  agreed.generation = next;
  Resolve(agreed, deferred);
  return outcome;
}

absl::Status GrowthRounds::Begin(Rank rank, const GrowthProposal& proposal,
                                 std::shared_ptr<const OptimizerSpec> spec, uint64_t digest,
                                 const OptimizerSpec& present) {
  if (proposal.phase == GrowthPhase::kCommit && spec != compared_) {
    return absl::FailedPreconditionError(
        absl::StrCat(Name(rank), " commits param groups that were not proposed before"));
  }
  absl::Status grows = CheckGrowth(present, *spec);
  if (!grows.ok()) return errors::WithContext(grows, Name(rank));
  Round round;
  round.phase = proposal.phase;
  round.spec = std::move(spec);
  round.digest = digest;
  round.first = rank;
  round.calls = proposal.calls;
  round.came.resize(world_size_);
  round.seen_in_step.resize(world_size_);
  round.missing = world_size_;
  round_ = std::move(round);
  asked_ = absl::InfinitePast();
  return absl::OkStatus();
}

// Keeps the first reason to refuse.
void GrowthRounds::Compare(Rank rank, const GrowthProposal& proposal, const OptimizerSpec* spec,
                           uint64_t digest) {
  Round& round = *round_;
  if (digest != round.digest) {
    const absl::optional<std::string> difference =
        FirstGrowthDifference(*round.spec, Name(round.first), *spec, Name(rank));
    round.failure.Update(errors::WithContext(
        errors::RanksDisagree({rank}, difference.value_or("other param groups are added")),
        absl::StrCat("optimizer \"", optimizer_, "\": all ranks must add the same param groups")));
  }
  if (proposal.phase != round.phase) {
    round.failure.Update(
        errors::RanksDisagree({rank}, absl::StrCat(Name(round.first), " and ", Name(rank),
                                                   " make different calls of add_param_group()")));
  }
  round.failure.Update(errors::WithContext(proposal.prepared, Name(rank)));
}

std::vector<Rank> GrowthRounds::Missing() const {
  std::vector<Rank> missing;
  for (Rank rank = 0; rank < world_size_; ++rank) {
    if (!Has(rank)) missing.push_back(rank);
  }
  return missing;
}

// Its call has ended without an answer. The last one ends the round.
void GrowthRounds::Withdraw(Rank rank, Deferred& deferred) {
  const auto wait = waits_.find(rank);
  if (wait != waits_.end()) {
    Answer(std::move(wait->second.callback), AskAgain(), deferred);
    waits_.erase(wait);
  }
  round_->came[rank] = Call();
  if (++round_->missing == world_size_) {
    round_.reset();
    return;
  }
  // All that are left have proposed the same, or the round has its failure.
  if (round_->first == rank) {
    round_->first = 0;
    while (!Has(round_->first)) ++round_->first;
  }
}

void GrowthRounds::Heard(Rank rank, const StepProgress& progress, Deferred& deferred) {
  if (!round_.has_value()) return;
  uint8_t& seen = round_->seen_in_step[rank];
  const bool refuses = progress.outcome == StepOutcome::kRefusing;
  const bool in_step =
      (refuses || progress.outcome == StepOutcome::kInStep) && LastCall(progress) >= round_->calls;
  seen = in_step ? std::min(seen + 1, kHeartbeatsInStep) : 0;
  if (seen < kHeartbeatsInStep) return;
  if (Has(rank)) Withdraw(rank, deferred);
  if (!round_.has_value()) return;
  if (!refuses) {
    Refuse(errors::RanksDisagree({rank},
                                 absl::StrCat(WhatFirstDoes(), ", ", Name(rank), " is in step()")),
           true, deferred);
    return;
  }
  // All take part in the refusal at once, so that nobody waits there for a rank that comes later.
  const std::vector<Rank> missing = Missing();
  const auto refuses_too = [this](Rank other) {
    return round_->seen_in_step[other] == kHeartbeatsInStep;
  };
  if (!absl::c_all_of(missing, refuses_too)) return;
  Refuse(errors::TrainerGone(missing,
                             absl::StrCat(WhatFirstDoes(),
                                          ", for which a successor is needed; the same call may be "
                                          "made again")),
         true, deferred);
}

void GrowthRounds::Left(Rank rank, const StepProgress& progress, Deferred& deferred) {
  if (Has(rank)) Withdraw(rank, deferred);
  if (!round_.has_value()) return;
  Refuse(errors::PeerLost(rank, absl::StrCat("it left the job after step ", progress.finished, ", ",
                                             WhatFirstDoes())),
         false, deferred);
}

std::string GrowthRounds::WhatFirstDoes() const {
  return absl::StrCat(Name(round_->first), " adds a param group or parameters");
}

void GrowthRounds::Tick(absl::Time now, Deferred& deferred) {
  if (round_.has_value() && now >= round_->deadline) {
    const std::vector<Rank> missing = Missing();
    absl::Status failure = round_->failure;
    if (failure.ok()) {
      failure = errors::PeersTimedOut(
          missing, absl::StrFormat("adding a param group or parameters to optimizer \"%s\" (%d of "
                                   "%d ranks have called)",
                                   optimizer_, world_size_ - missing.size(), world_size_));
    }
    Refuse(std::move(failure), false, deferred);
  }
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    if (now < wait->second.until) {
      ++wait;
      continue;
    }
    Answer(std::move(wait->second.callback), AskAgain(), deferred);
    wait = waits_.erase(wait);
  }
}

void GrowthRounds::Fail(const absl::Status& reason, Deferred& deferred) {
  for (auto& [rank, wait] : waits_) Answer(std::move(wait.callback), reason, deferred);
  waits_.clear();
  round_.reset();
}

void GrowthRounds::Refuse(absl::Status failure, bool others_step, Deferred& deferred) {
  GrowthAnswer refused;
  refused.failure = std::move(failure);
  refused.others_step = others_step;
  Resolve(refused, deferred);
}

void GrowthRounds::Resolve(const GrowthAnswer& answer, Deferred& deferred) {
  for (Rank rank = 0; rank < world_size_; ++rank) {
    if (Has(rank)) last_[rank] = {round_->came[rank], answer};
  }
  for (auto& [rank, wait] : waits_) Answer(std::move(wait.callback), answer, deferred);
  waits_.clear();
  round_.reset();
}

void GrowthRounds::Answer(Callback callback, absl::StatusOr<GrowthAnswer> answer,
                          Deferred& deferred) {
  deferred.push_back(
      [callback = std::move(callback), answer = std::move(answer)] { callback(answer); });
}

}  // namespace optshard

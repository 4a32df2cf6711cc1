// Collects from all ranks of a group that they add the same param groups: one round to compare, and
// one to commit.
#ifndef OPTSHARD_SERVER_COORDINATOR_GROWTH_ROUNDS_H_
#define OPTSHARD_SERVER_COORDINATOR_GROWTH_ROUNDS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/ids.h"
#include "common/membership/growth.h"
#include "common/membership/membership.h"
#include "common/optimizer_spec.h"
#include "server/coordinator/rendezvous_store.h"

namespace optshard {

// A round begins with the first rank that proposes, and ends when all ranks have: agreed if they
// propose the same and every one can go on, else refused, for all with the same reason. It is also
// refused at the earliest deadline of those who wait, naming the ranks that have not come; where a
// rank is in a step that those who wait do not take part in; and where a rank has left. A rank that
// makes another call has given up the one before, and is compared anew. Each rank's last answer is
// kept for retries. What is kept is proportional to the ranks. Thread-compatible; runs no callback,
// but appends it to `deferred`.
class GrowthRounds {
 public:
  using Callback = std::function<void(absl::StatusOr<GrowthAnswer>)>;
  // The longest patience of a rank that counts.
  static constexpr absl::Duration kLongestPatience = absl::Hours(1);
  // How long a rank that was asked for its spec is waited for before another one is asked.
  static constexpr absl::Duration kSpecPatience = absl::Seconds(1);

  // What a round has ended with, if anything.
  enum class Outcome { kNone, kCompared, kCommitted };

  GrowthRounds(std::string optimizer, int world_size);

  // Whether this is a retry of the rank's last call that was answered.
  bool Knows(Rank rank, const GrowthProposal& proposal) const;

  // Calls back once: with the answer, with NOT_FOUND where there is none until `wait_until`, so
  // that the rank asks again; with an error:
  //   INVALID_ARGUMENT     the spec does not go on from `present` (CheckGrowth), or is not needed
  //   FAILED_PRECONDITION  a commit of what was not compared before; a call that the rank has
  //                        already followed by another one
  // `next` is the number of the generation that all agree on.
  Outcome Propose(Rank rank, const GrowthProposal& proposal, const OptimizerSpec& present,
                  Generation next, absl::Time now, absl::Time wait_until, Callback callback,
                  Deferred& deferred);

  // A heartbeat of the rank has said so. The second one in a row that shows it in a step after
  // those that the proposing ranks have finished ends the round: one alone may be late. So it does
  // where it shows that the rank waits to refuse that step, and all others have proposed or do so,
  // too: then with TrainerGone. A rank that has proposed before has given that up.
  void Heard(Rank rank, const StepProgress& progress, Deferred& deferred);

  // The rank has left the group and will not come: ends a round that waits for it, with PeerLost. A
  // rank that has proposed before has given that up.
  void Left(Rank rank, const StepProgress& progress, Deferred& deferred);

  bool open() const { return round_.has_value(); }
  // Whether a round goes on that the rank has not come to.
  bool WaitsFor(Rank rank) const { return round_.has_value() && !Has(rank); }

  void Tick(absl::Time now, Deferred& deferred);

  // Ends the round and all waits.
  void Fail(const absl::Status& reason, Deferred& deferred);

  // What was compared last: after kCommitted, the ranks' spec.
  const std::shared_ptr<const OptimizerSpec>& compared() const { return compared_; }

 private:
  // A rank's proposal: the later one is the greater one.
  using Call = std::pair<uint64_t, GrowthPhase>;
  struct Round {
    GrowthPhase phase = GrowthPhase::kCompare;
    std::shared_ptr<const OptimizerSpec> spec;
    uint64_t digest = 0;
    Rank first = 0;  // who began it
    CallNumber calls = 0;
    absl::Time deadline = absl::InfiniteFuture();
    absl::Status failure;               // the first reason to refuse
    std::vector<Call> came;             // by rank; number 0: has not come
    std::vector<uint8_t> seen_in_step;  // by rank: heartbeats in a row
    int missing = 0;
  };
  struct Wait {
    absl::Time until;
    Callback callback;
  };
  struct Last {
    Call call;  // number 0: none
    GrowthAnswer answer;
  };

  absl::Status Begin(Rank rank, const GrowthProposal& proposal,
                     std::shared_ptr<const OptimizerSpec> spec, uint64_t digest,
                     const OptimizerSpec& present);
  void Compare(Rank rank, const GrowthProposal& proposal, const OptimizerSpec* spec,
               uint64_t digest);
  std::vector<Rank> Missing() const;
  std::string WhatFirstDoes() const;
  bool Has(Rank rank) const { return round_.has_value() && round_->came[rank].first != 0; }
  void Withdraw(Rank rank, Deferred& deferred);
  void Resolve(const GrowthAnswer& answer, Deferred& deferred);
  void Refuse(absl::Status failure, bool others_step, Deferred& deferred);
  void Answer(Callback callback, absl::StatusOr<GrowthAnswer> answer, Deferred& deferred);

  const std::string optimizer_;
  const int world_size_;
  absl::optional<Round> round_;
  std::map<Rank, Wait> waits_;
  std::vector<Last> last_;  // by rank
  std::shared_ptr<const OptimizerSpec> compared_;
  uint64_t compared_digest_ = 0;
  absl::Time asked_ = absl::InfinitePast();
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_GROWTH_ROUNDS_H_

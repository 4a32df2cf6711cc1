// The coordinator of a job: who takes part, who owns what, who is lost. Domain class: knows no
// gRPC. coordinator_service.h serves it.
#ifndef OPTSHARD_SERVER_COORDINATOR_COORDINATOR_H_
#define OPTSHARD_SERVER_COORDINATOR_COORDINATOR_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/membership/membership.h"
#include "server/coordinator/agreement.h"
#include "server/coordinator/group.h"
#include "server/coordinator/group_lives.h"
#include "server/coordinator/running_time.h"

namespace optshard {

// Says who calls, and which plan the caller follows. The generation is 0 for a member that has not
// got its plan yet; ReportFailure and the calls of the rendezvous do not accept that.
struct Caller {
  MemberId member;
  Generation generation = 0;
};

// Thread-safe. No callback runs under the coordinator's lock. Each optimizer name has a group of
// its own, which begins with the first Join that brings a spec. A group that has failed forms again
// from ranks that bring their state back (docs/decisions/0008). The life of the group that admitted
// a member answers its calls, as long as it is the present life or the one before. In addition to
// what is listed with each call, a member's call returns
//   INVALID_ARGUMENT     another job, or a rank out of range
//   FAILED_PRECONDITION  StaleIncarnation: the caller is not the rank's present member.
//                        StaleGeneration: the caller follows another plan. Nothing changes
//   UNAVAILABLE          the coordinator is shutting down
class Coordinator {
 public:
  struct Options {
    GroupOptions group;
    const Clock* clock = &Clock::Monotonic();  // outlives the coordinator
    // More time than this between two calls, Tick included, does not count: the coordinator was
    // paused and could hear nobody.
    absl::Duration longest_step = absl::Milliseconds(100);
  };

  // INVALID_ARGUMENT: an empty job, a world size below 1, a time that is not positive (or, for
  // resume_grace, negative).
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(Options options);

  //   INVALID_ARGUMENT     what CheckJoinRequest says; or RanksDisagree, and then the group fails,
  //                        so that all its ranks learn of it
  //   ALREADY_EXISTS       the rank is taken; the group is unaffected
  //   FAILED_PRECONDITION  another protocol version; the group has finished; it has failed, and the
  //                        request brings no state, or nobody ever had a plan
  //   RESOURCE_EXHAUSTED   the job has kMaxOptimizers optimizers already
  // A request with `resumes` begins the next life of a group that has failed. It also does so where
  // the group works and the rank still counts as present: the state has come back, so the former
  // process is dead, and the group fails with PeerLost. When all ranks have joined, the group goes
  // on from the recovery point of their states, or fails again (recovery_point.h). A retry (the
  // same request id) gets the first answer. A request without a spec may get
  // JoinAnswer::kSendSpec or kAskAgain; then nothing has changed.
  absl::StatusOr<JoinReply> Join(const JoinRequest& request);

  // Begins the caller's event stream, in place of one it may have. `wake` is called whenever
  // ReadEvents has more to give, from any thread, possibly once more after CloseWatch.
  absl::StatusOr<WatchId> OpenWatch(const Caller& caller, std::function<void()> wake);
  // The stream has ended: if the member does not open another one soon, it counts as lost.
  void CloseWatch(const Caller& caller, WatchId watch);
  // ABORTED where another stream took over.
  absl::StatusOr<WatchEvents> ReadEvents(const Caller& caller, WatchId watch,
                                         uint64_t after_sequence) const;

  // The answer to a heartbeat or a report.
  struct Answer {
    absl::Status failure;  // the group's; OK while it works
  };

  // Renews the lease.
  absl::StatusOr<Answer> Heartbeat(const Caller& caller, const StepProgress& progress);

  // An operation of the caller has failed with `observed`. `suspect` is -1 where it suspects
  // nobody. All members get an event that names the cause. INVALID_ARGUMENT where the suspect is
  // not a rank of the job, or `observed` is OK.
  absl::StatusOr<Answer> ReportFailure(const Caller& caller, const StepProgress& progress,
                                       Rank suspect, const absl::Status& observed);

  // The caller ends its part in the job cleanly: nobody is lost. Idempotent.
  absl::Status Leave(const Caller& caller, const StepProgress& progress);

  // Stores the value under the key. Errors as RendezvousStore::Put, and the group's failure where
  // the group has failed.
  absl::Status PutRendezvous(const Caller& caller, absl::string_view key, absl::string_view value);

  // Calls back once: with the value as soon as it is there, with NOT_FOUND after `wait`, or with an
  // error as PutRendezvous.
  void GetRendezvous(const Caller& caller, absl::string_view key, absl::Duration wait,
                     RendezvousStore::GetCallback callback);

  // Param groups are added: the rank proposes it, and waits for the others at most `wait`. Calls
  // back once: with the answer, with NOT_FOUND after `wait` (propose again, with the same number),
  // or with an error as GrowthRounds::Propose and PutRendezvous. Once all ranks have committed, the
  // group's generation is the next one, and its spec the grown one.
  void ProposeGrowth(const Caller& caller, const GrowthProposal& proposal, absl::Duration wait,
                     GrowthRounds::Callback callback);

  // Where the owners of the ranks from `first` on are reached, at most kMostOwners. Changes
  // nothing.
  //   NOT_FOUND            nobody has joined such an optimizer
  //   FAILED_PRECONDITION  not all ranks have joined yet
  //   INVALID_ARGUMENT     `first` is not a rank of the job
  absl::StatusOr<OwnerPage> GetOwners(absl::string_view optimizer, Rank first) const;

  // What the ranks follow. Changes nothing. NOT_FOUND and FAILED_PRECONDITION as GetOwners.
  absl::StatusOr<OptimizerPlan> GetPlan(absl::string_view optimizer) const;

  // Of those that have a group, sorted.
  std::vector<std::string> OptimizerNames() const;

  // The status of one optimizer, or of all if the name is empty. Changes nothing.
  JobStatus GetStatus(absl::string_view optimizer) const;

  // Checks timeouts, leases, broken sessions and pending reports. Must be called every few
  // milliseconds, more often than Options::longest_step.
  void Tick();

  // Ends all streams and all waits. Every later call returns UNAVAILABLE. No rank counts as lost
  // because of it. Idempotent.
  void Shutdown();

  // Whether there is nothing left to do: there was a group, all groups have finished or failed, all
  // members are gone, and no group that failed is within its resume_grace.
  bool Done() const;

  const GroupOptions& options() const { return options_.group; }

 private:
  explicit Coordinator(Options options)
      : options_(std::move(options)), time_(options_.longest_step) {}

  // The present time, which all leases and timeouts are measured with.
  absl::Time Now() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return time_.Observe(options_.clock->Now());
  }

  // The life of a group that the caller is in.
  absl::StatusOr<Group*> Admit(const Caller& caller) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::StatusOr<const Group*> Find(absl::string_view optimizer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  RunningTime time_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, GroupLives> groups_ ABSL_GUARDED_BY(mutex_);
  // Optimizers of which ranks have called that nobody has joined here: the log was told.
  std::set<std::string> unknown_ ABSL_GUARDED_BY(mutex_);
  // The optimizer whose first spec is waited for, and whom it was asked of. A group has one.
  std::string awaited_ ABSL_GUARDED_BY(mutex_);
  Agreement first_spec_ ABSL_GUARDED_BY(mutex_);
  absl::Status shutdown_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_COORDINATOR_H_

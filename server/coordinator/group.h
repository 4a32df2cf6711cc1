// The ranks of one optimizer: which have joined, which are alive, which plan they follow, and why
// they cannot go on.
#ifndef OPTSHARD_SERVER_COORDINATOR_GROUP_H_
#define OPTSHARD_SERVER_COORDINATOR_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/ids.h"
#include "common/incarnation.h"
#include "common/membership/growth.h"
#include "common/membership/membership.h"
#include "server/coordinator/agreement.h"
#include "server/coordinator/failure_attribution.h"
#include "server/coordinator/growth_rounds.h"
#include "server/coordinator/join_results.h"
#include "server/coordinator/liveness.h"
#include "server/coordinator/member.h"
#include "server/coordinator/rendezvous_store.h"

namespace optshard {

struct GroupOptions {
  std::string job = "optshard";
  int world_size = 1;
  absl::Duration join_timeout = absl::Seconds(60);  // from the first join to the last
  LivenessOptions liveness;
  // How long a report of a failure waits in case another rank turns out to be dead.
  absl::Duration attribution_grace = absl::Milliseconds(500);
  Rank host_rank = -1;  // the rank whose process embeds the coordinator; -1: none does
  // For the incarnations that it gives out. 0: the wall-clock time when the coordinator is created.
  Epoch epoch = 0;
  // How long a group that has failed and has no members left is not done: its ranks may be about to
  // come back with their state. Zero where nothing restarts them.
  absl::Duration resume_grace;
};

struct WatchEvents {
  std::vector<MemberEvent> events;
  bool last = false;  // nothing will follow them
};

//   forming --all joined--> active --all left--> finished
//      \                      \---a rank lost, a failure attributed---> failed
//       \--ranks disagree, join timeout, a rank lost---> failed
//
// A group that failed stays so. Ranks that still have their state, or begin anew, form another one
// after it (group_lives.h).
//
// Thread-compatible. It knows no clock: each call says what time it is. It runs no callback: the
// caller takes them (TakeDeferred) and runs them once it holds no lock.
class Group {
 public:
  Group(std::string optimizer, GroupOptions options);

  // A group that replaces `failed`. Generations and incarnations go on where they ended there.
  static std::unique_ptr<Group> After(const Group& failed);

  // Whether the request is a retry of one that this group has answered.
  bool KnowsRequest(const JoinRequest& request) const;

  // Whether a request that this group does not know is for the group that replaces it. Where the
  // rank's member still counts as present, a request with state, or of the member's own process,
  // proves that the member is dead: this group then fails with PeerLost.
  bool GivesWayTo(const JoinRequest& request, absl::Time now);

  // As in Agreement.
  bool KnowsSpecOf(const JoinRequest& request) const { return agreement_.KnowsSpecOf(request); }
  JoinReply AskForSpec(absl::Time now) { return agreement_.AskForSpec(now); }

  // The request passed CheckJoinRequest. Errors as the coordinator's Join.
  absl::StatusOr<JoinReply> Join(const JoinRequest& request, absl::Time now);

  // Whether this group admitted the caller, who left again before the group was complete: its rank
  // was then free for another process.
  bool LeftWhileForming(const MemberId& member) const;

  // FAILED_PRECONDITION (StaleIncarnation) where the caller is not the rank's present life.
  absl::Status CheckIncarnation(const MemberId& member) const;
  // FAILED_PRECONDITION (StaleGeneration) where the caller follows another plan or has none yet.
  // That of any generation since the ranks joined will do: a rank may not have heard yet that param
  // groups were added.
  absl::Status CheckGeneration(Generation generation) const;

  // The calls below require that the caller has passed CheckIncarnation.

  // Begins the member's event stream, in place of one it may have. `wake` is deferred whenever
  // ReadEvents has more to give.
  WatchId OpenWatch(Rank rank, std::function<void()> wake, absl::Time now);
  // The stream has ended, and the member has `grace` to resume it. Does nothing for a stream that
  // was replaced.
  void CloseWatch(Rank rank, WatchId watch, absl::Duration grace, absl::Time now);
  // ABORTED where another stream took over.
  absl::StatusOr<WatchEvents> ReadEvents(Rank rank, WatchId watch, uint64_t after_sequence) const;

  void Heartbeat(Rank rank, const StepProgress& progress, absl::Time now);
  // INVALID_ARGUMENT where the suspect is not a rank of the job, or `observed` is OK.
  absl::Status ReportFailure(Rank rank, const StepProgress& progress, Rank suspect,
                             const absl::Status& observed, absl::Time now);
  void Leave(Rank rank, const StepProgress& progress, absl::Time now);

  absl::Status PutRendezvous(Rank rank, absl::string_view key, absl::string_view value,
                             absl::Time now);
  void GetRendezvous(absl::string_view key, absl::Time deadline,
                     RendezvousStore::GetCallback callback);

  // As GrowthRounds::Propose, and then the group's spec and generation are the next ones; or calls
  // back with the group's failure, with FAILED_PRECONDITION where it does not work, or with
  // StaleGeneration where the caller is not of its present generation.
  void ProposeGrowth(Rank rank, Generation generation, const GrowthProposal& proposal,
                     absl::Time wait_until, GrowthRounds::Callback callback, absl::Time now);

  // Checks the join timeout, leases, broken sessions, suspicions and waits for the rendezvous.
  void Tick(absl::Time now);

  // The coordinator ends: all streams and waits end with `reason`, and no rank is blamed.
  void Shutdown(const absl::Status& reason);

  GroupState state() const { return state_; }
  Generation generation() const { return generation_; }
  const absl::Status& failure() const { return failure_; }
  // As OwnersFrom; FAILED_PRECONDITION before the group has a plan.
  absl::StatusOr<OwnerPage> Owners(Rank first) const;

  // What the ranks follow. FAILED_PRECONDITION before the group has a plan.
  absl::StatusOr<OptimizerPlan> PlanOf() const;
  GroupStatus Status(absl::Time now) const;
  bool HasMembers() const;
  // Whether all members are gone and none is expected to come back.
  bool Done(absl::Time now) const;

  Deferred TakeDeferred();

 private:
  JoinReply ReplyTo(Incarnation incarnation) const;
  bool IsOfLostMember(Rank rank, const JoinResults::Answer& answer) const;
  absl::Status CheckHasPlan() const;
  void Activate();
  void Fail(const absl::Status& failure);
  void Send(Member& member, MemberEvent event);
  void Record(Member& member, const StepProgress& progress, absl::Time now, bool final);
  void LookForLost(absl::Time now);
  void LookForAbandoned();
  void Decide(absl::Time now);

  const std::string optimizer_;
  const GroupOptions options_;

  GroupState state_ = GroupState::kForming;
  std::vector<Member> members_;  // by rank
  int missing_;                  // how many of them are
  int left_ = 0;                 // likewise
  Agreement agreement_;
  absl::Time first_joined_;
  absl::Time last_gone_ = absl::InfinitePast();  // when a member last left or was lost
  Generation generation_ = 0;
  std::shared_ptr<const PlanReady> ready_;  // null before there is a plan
  Generation first_generation_ = 0;         // that the ranks joined for
  Generation last_generation_ = 0;          // of any plan before this group's
  // Whether there can be state to go on from: this group or one before it has had a plan.
  bool resumable_ = false;
  absl::Status failure_;
  JoinResults joins_;
  std::vector<Suspicion> suspicions_;
  std::unique_ptr<RendezvousStore> rendezvous_;
  GrowthRounds growth_;
  WatchId last_watch_ = 0;
  absl::Status shutdown_;
  Deferred deferred_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_GROUP_H_

// What a member of a job and its coordinator exchange, as plain values.
#ifndef OPTSHARD_COMMON_MEMBERSHIP_MEMBERSHIP_H_
#define OPTSHARD_COMMON_MEMBERSHIP_MEMBERSHIP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/ids.h"
#include "common/optimizer_spec.h"
#include "common/partition.h"
#include "common/plan.h"

namespace optshard {

// Of all that ranks, their shard owners and the coordinator say to each other.
constexpr uint32_t kProtocolVersion = 3;

// How far a member is in its steps. Heartbeats and failure reports carry it.
enum class StepOutcome : uint8_t {
  kIdle = 1,        // between steps: `finished` is the state
  kInStep = 2,      // working on finished + 1
  kNotApplied = 3,  // finished + 1 failed before anybody can have applied it
  kInDoubt = 4,     // finished + 1 failed while ranks agreed on it; not applied here
  kTorn = 5,        // finished + 1 failed while it was applied
  kApplied = 6,     // finished + 1 is applied here; whether the others applied it is not known
  kRefusing = 7,    // waits for the others, to refuse finished + 1: it has no trainer for it
};
absl::string_view NameOf(StepOutcome outcome);
// Whether the outcome leaves open of which step the ranks' states are.
bool IsOpen(StepOutcome outcome);

struct StepProgress {
  StepNumber finished = 0;
  StepOutcome outcome = StepOutcome::kIdle;
  uint64_t skipped = 0;  // calls of step() so far in which nobody had a gradient
};

// The last step that the rank has applied in full. Where a step is torn, it is the one before.
StepNumber AppliedStep(const StepProgress& progress);
// The last call of step() that has finished a step or was skipped; 0: none yet.
CallNumber LastCall(const StepProgress& progress);

// A rank's optimizer state that is still there after the process that used it has ended or was cut
// off.
struct KeptState {
  Generation generation = 0;  // of the plan by which it was stepped
  StepProgress progress;
  // Digest of a spec with param groups that were being added when the process ended: whether the
  // ranks have gone on with them it does not know, but it could.
  absl::optional<uint64_t> prepared_spec_digest = absl::nullopt;
  // Parameters that were added have not got the job's first values here.
  bool lacks_values = false;
  // The state is that of no step, and all ranks were told: it is kept for its room, and `progress`
  // is that of step 0.
  bool is_torn = false;
};

// The rank may begin anew where the optimizer has failed, if nobody holds it any more, or its own
// process does, which has ended that.
struct BeginsAnew {
  uint64_t process = 0;   // a random number, the same in all joins of a process
  bool replaces = false;  // a broken owner that the process had for the rank
};

struct JoinRequest {
  std::string job;
  std::string optimizer;
  Rank rank = -1;
  std::string request_id;  // the same for retries of one join
  uint32_t protocol_version = kProtocolVersion;
  OptimizerSpec spec;  // of all ranks alike
  // A rank need not send a spec that the coordinator may have already: then there is only this
  // digest of it, and in `spec` nothing but the world size.
  absl::optional<uint64_t> spec_digest;
  std::string node;           // ranks of the same node name are one node group of the tree
  std::string owner_address;  // HOST:PORT of the rank's shard owner service
  int64_t pid = 0;            // for people, in the status
  // Set by a rank that was in the job before and still has its state. Either all ranks set it or
  // none.
  absl::optional<KeptState> resumes;
  absl::optional<BeginsAnew> begins_anew;  // set where a rank's state ends with its shard owner
};

// The request with the digest of its spec in place of the spec.
JoinRequest WithoutSpec(const JoinRequest& request);

enum class JoinAnswer : uint8_t {
  kAdmitted = 1,
  // Of a request without a spec; nothing has changed.
  kSendSpec = 2,  // join again with the spec
  kAskAgain = 3,  // another rank was asked for its spec: join again in a moment
};

// A member's admission. The plan comes later, with the event kPlanReady.
struct JoinReply {
  JoinAnswer answer = JoinAnswer::kAdmitted;
  // The rest is of a member that is admitted.
  Incarnation incarnation = 0;
  absl::Duration lease;             // silence longer than this is death
  absl::Duration heartbeat_period;  // how often to speak
  Rank host_rank = -1;              // whose process embeds the coordinator; -1: one of its own
};

// What all members of a group are told when it is complete.
struct PlanReady {
  Plan plan;
  uint64_t plan_digest = 0;  // Plan::Digest
  StepNumber finished = 0;   // after which step all ranks go on ...
  uint64_t skipped = 0;      // ... and after how many skipped calls
  // Some rank's added parameters have no values: all synchronise before they do anything else
  // together.
  bool lacks_values = false;
  // Some rank's state is that of no step. All ranks refuse each step until a checkpoint is loaded,
  // also those whose own state is whole.
  bool is_torn = false;
};

// An event for a member. Events come in order, each once.
struct MemberEvent {
  // kProgressWanted: the coordinator has to know soon whether the member is in a step.
  enum class Kind : uint8_t { kPlanReady = 1, kGroupFailed = 2, kProgressWanted = 3 };
  uint64_t sequence = 0;  // 1, 2, ... for each member
  Kind kind = Kind::kPlanReady;
  // kPlanReady: the same for all members, since it grows with their number.
  std::shared_ptr<const PlanReady> ready;
  absl::Status failure;  // kGroupFailed: whom the job lost, or why it cannot start
};

// The numbers travel.
enum class MemberState : uint8_t {
  kMissing = 1,  // nobody has joined under this rank, or left again before the group was complete
  kJoined = 2,   // waits for the others
  kActive = 3,   // works by the plan
  kLeft = 4,     // has left cleanly
  kLost = 5,     // dead: killed, or silent past its lease
};
absl::string_view NameOf(MemberState state);  // "missing", "joined", ...

// The numbers travel.
enum class GroupState : uint8_t { kForming = 1, kActive = 2, kFailed = 3, kFinished = 4 };
absl::string_view NameOf(GroupState state);  // "forming", "active", ...

// One rank as the coordinator sees it.
struct MemberStatus {
  Rank rank = -1;
  Incarnation incarnation = 0;
  MemberState state = MemberState::kMissing;
  std::string node;
  std::string owner_address;
  int64_t pid = 0;
  absl::Duration silent_for;
  StepProgress progress;
};

struct GroupStatus {
  std::string optimizer;
  GroupState state = GroupState::kForming;
  Generation generation = 0;
  int world_size = 0;
  std::string rules;  // RulesText
  PartitionPolicy policy = PartitionPolicy::kGreedy;
  int parameter_count = 0;
  int64_t total_elements = 0;
  absl::Status failure;
  // Whether, in a group that has failed, some rank may have applied a step that others have not.
  bool torn = false;
  std::vector<MemberStatus> members;
};

struct JobStatus {
  std::string job;
  std::vector<GroupStatus> groups;
};

// What an optimizer is, and what its ranks follow.
struct OptimizerPlan {
  OptimizerSpec spec;
  std::shared_ptr<const PlanReady> ready;
};

// Where the owners of some ranks are reached.
struct OwnerPage {
  Generation generation = 0;  // of the plan that the ranks follow
  int world_size = 0;
  std::vector<std::string> addresses;  // HOST:PORT, or empty; of consecutive ranks
};
// Of one page.
constexpr int kMostOwners = 4096;

// One line each, for people.
std::string Summary(const MemberStatus& member);
std::string Summary(const GroupStatus& group);
std::string Summary(const JobStatus& job);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMBERSHIP_MEMBERSHIP_H_

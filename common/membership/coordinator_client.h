// A member's end of the control plane. coordinator_client_rpc.h speaks gRPC; tests use the
// coordinator's domain class directly.
#ifndef OPTSHARD_COMMON_MEMBERSHIP_COORDINATOR_CLIENT_H_
#define OPTSHARD_COMMON_MEMBERSHIP_COORDINATOR_CLIENT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "common/dataplane/rendezvous.h"
#include "common/ids.h"
#include "common/membership/growth.h"
#include "common/membership/membership.h"

namespace optshard {

// A member that has joined. Renews its lease in the background until it leaves or is destroyed. To
// the other ranks, a session that is destroyed without Leave has died. Thread-safe.
class MemberSession {
 public:
  virtual ~MemberSession() = default;

  virtual const MemberId& id() const = 0;

  // Waits until all ranks have joined. Returns the plan.
  // DEADLINE_EXCEEDED naming the missing ranks; the group's failure where it cannot start (such as
  // RanksDisagree with the first difference, on every rank).
  virtual absl::StatusOr<MemberEvent> WaitForPlan(absl::Time deadline) = 0;

  // Sets what is called once the group has failed: a rank is lost, or the ranks cannot go on.
  // StaleIncarnation where the coordinator has a group without this member and no longer knows the
  // member's own. Called once, from a thread of the session, and never after Leave or the session's
  // destruction: both wait for a call that runs. Set it before WaitForPlan. It must not block, nor
  // call the session.
  virtual void OnFailure(std::function<void(const absl::Status&)> callback) = 0;

  // What the next heartbeat reports.
  virtual void SetProgress(const StepProgress& progress) = 0;

  // Reports to the coordinator that an operation failed and which rank is suspected (-1: none).
  // Then waits until the coordinator has attributed the failure: all members get the same error,
  // which names the dead rank. Returns `observed` where that has not happened by the deadline.
  virtual absl::Status ReportFailure(const StepProgress& progress, Rank suspect,
                                     const absl::Status& observed, absl::Time deadline) = 0;

  // One phase of adding param groups: proposes, and waits until all ranks have. Returns kAgreed or
  // kRefused, of kCommit after the deadline at the latest; the proposal's patience should end
  // before it, so that the coordinator can say which ranks did not come. After an agreed commit the
  // member is of the next generation. Errors as Coordinator.ProposeGrowth in coordinator.proto, but
  // NOT_FOUND; and where the coordinator does not answer, or not in time, UNAVAILABLE or
  // DEADLINE_EXCEEDED: of kCommit the other ranks may have an answer.
  virtual absl::StatusOr<GrowthAnswer> ProposeGrowth(const GrowthProposal& proposal,
                                                     absl::Time deadline) = 0;

  virtual Rendezvous& rendezvous() = 0;

  // Leaves the job cleanly: for the other ranks nobody is lost. Idempotent.
  virtual absl::Status Leave(absl::Time deadline) = 0;
};

// Thread-safe.
class CoordinatorClient {
 public:
  virtual ~CoordinatorClient() = default;

  // UNAVAILABLE naming the address where nobody answers by the deadline; INVALID_ARGUMENT (rank out
  // of range, wrong job or world size, parameter lists that differ ...) and ALREADY_EXISTS (the
  // rank is taken) as the coordinator says. `cancellation` ends this call and the session's
  // WaitForPlan with its reason. It outlives the session; null: none.
  virtual absl::StatusOr<std::unique_ptr<MemberSession>> Join(const JoinRequest& request,
                                                              absl::Time deadline,
                                                              Cancellation* cancellation) = 0;
  absl::StatusOr<std::unique_ptr<MemberSession>> Join(const JoinRequest& request,
                                                      absl::Time deadline) {
    return Join(request, deadline, nullptr);
  }

  // Where the shard owners of all ranks of the optimizer are reached, by rank: HOST:PORT, or empty
  // for a rank that has none. Anybody may ask. NOT_FOUND where nobody has joined such an optimizer;
  // FAILED_PRECONDITION while not all ranks have; UNAVAILABLE as GetStatus.
  virtual absl::StatusOr<std::vector<std::string>> GetOwners(const std::string& optimizer,
                                                             absl::Time deadline) = 0;

  // UNAVAILABLE naming the address where no coordinator answers by the deadline.
  virtual absl::StatusOr<JobStatus> GetStatus(absl::Time deadline) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMBERSHIP_COORDINATOR_CLIENT_H_

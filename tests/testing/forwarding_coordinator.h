// A coordinator's client and its sessions that pass everything on, for tests that change one call.
#ifndef OPTSHARD_TESTS_TESTING_FORWARDING_COORDINATOR_H_
#define OPTSHARD_TESTS_TESTING_FORWARDING_COORDINATOR_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "common/membership/coordinator_client.h"

namespace optshard::testing {

class ForwardingSession : public MemberSession {
 public:
  explicit ForwardingSession(std::unique_ptr<MemberSession> session)
      : session_(std::move(session)) {}

  const MemberId& id() const override { return session_->id(); }
  absl::StatusOr<MemberEvent> WaitForPlan(absl::Time deadline) override {
    return session_->WaitForPlan(deadline);
  }
  void OnFailure(std::function<void(const absl::Status&)> callback) override {
    session_->OnFailure(std::move(callback));
  }
  void SetProgress(const StepProgress& progress) override { session_->SetProgress(progress); }
  absl::Status ReportFailure(const StepProgress& progress, Rank suspect,
                             const absl::Status& observed, absl::Time deadline) override {
    return session_->ReportFailure(progress, suspect, observed, deadline);
  }
  absl::StatusOr<GrowthAnswer> ProposeGrowth(const GrowthProposal& proposal,
                                             absl::Time deadline) override {
    return session_->ProposeGrowth(proposal, deadline);
  }
  Rendezvous& rendezvous() override { return session_->rendezvous(); }
  absl::Status Leave(absl::Time deadline) override { return session_->Leave(deadline); }

 private:
  const std::unique_ptr<MemberSession> session_;
};

class ForwardingCoordinator : public CoordinatorClient {
 public:
  using Wrap =
      std::function<std::unique_ptr<MemberSession>(std::unique_ptr<MemberSession> session)>;

  // `coordinator` outlives it.
  ForwardingCoordinator(CoordinatorClient* coordinator, Wrap wrap)
      : coordinator_(coordinator), wrap_(std::move(wrap)) {}

  absl::StatusOr<std::unique_ptr<MemberSession>> Join(const JoinRequest& request,
                                                      absl::Time deadline,
                                                      Cancellation* cancellation) override {
    absl::StatusOr<std::unique_ptr<MemberSession>> session =
        coordinator_->Join(request, deadline, cancellation);
    if (!session.ok()) return session.status();
    return wrap_(*std::move(session));
  }
  absl::StatusOr<std::vector<std::string>> GetOwners(const std::string& optimizer,
                                                     absl::Time deadline) override {
    return coordinator_->GetOwners(optimizer, deadline);
  }
  absl::StatusOr<JobStatus> GetStatus(absl::Time deadline) override {
    return coordinator_->GetStatus(deadline);
  }

 private:
  CoordinatorClient* const coordinator_;
  const Wrap wrap_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FORWARDING_COORDINATOR_H_

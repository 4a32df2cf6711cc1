#include "server/node/stoppable_coordinator.h"

#include <algorithm>
#include <utility>

#include "common/clock.h"

namespace optshard {
namespace {

// How often a wait looks whether it is to end.
constexpr absl::Duration kLook = absl::Milliseconds(250);
constexpr absl::Duration kJoinLook = absl::Seconds(2);

class StoppableSession final : public MemberSession {
 public:
  StoppableSession(std::unique_ptr<MemberSession> session, const std::atomic<bool>* stopped)
      : session_(std::move(session)), stopped_(*stopped) {}

  const MemberId& id() const override { return session_->id(); }

  absl::StatusOr<MemberEvent> WaitForPlan(absl::Time deadline) override {
    while (!stopped_) {
      const absl::Time now = Clock::Monotonic().Now();
      absl::StatusOr<MemberEvent> event = session_->WaitForPlan(std::min(deadline, now + kLook));
      if (!absl::IsDeadlineExceeded(event.status()) || now >= deadline) return event;
    }
    return absl::UnavailableError("the shard server is shutting down");
  }

  void OnFailure(std::function<void(const absl::Status&)> callback) override {
    session_->OnFailure(std::move(callback));
  }
  void SetProgress(const StepProgress& progress) override { session_->SetProgress(progress); }
  absl::Status ReportFailure(const StepProgress& progress, Rank suspect,
                             const absl::Status& observed, absl::Time deadline) override {
    return session_->ReportFailure(progress, suspect, observed, deadline);
  }
  Rendezvous& rendezvous() override { return session_->rendezvous(); }
  absl::Status Leave(absl::Time deadline) override { return session_->Leave(deadline); }

 private:
  const std::unique_ptr<MemberSession> session_;
  const std::atomic<bool>& stopped_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MemberSession>> StoppableCoordinator::Join(
    const JoinRequest& request, absl::Time deadline) {
  absl::StatusOr<std::unique_ptr<MemberSession>> session =
      absl::UnavailableError("the shard server is shutting down");
  while (!stopped_) {
    // A retry of the same request gets the first answer, so that one which was late is not lost.
    const absl::Time now = Clock::Monotonic().Now();
    session = client_->Join(request, std::min(deadline, now + kJoinLook));
    if (!absl::IsUnavailable(session.status()) || now + kJoinLook >= deadline) break;
  }
  if (!session.ok()) return session.status();
  return std::unique_ptr<MemberSession>(
      std::make_unique<StoppableSession>(*std::move(session), &stopped_));
}

}  // namespace optshard

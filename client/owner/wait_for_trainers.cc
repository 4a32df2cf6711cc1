#include "client/owner/wait_for_trainers.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/errors.h"

namespace optshard {
namespace {

constexpr absl::Duration kTrainerPollPeriod = absl::Milliseconds(50);
constexpr absl::Duration kLeastAttempt = absl::Seconds(1);

bool MayComeYet(const absl::Status& status) {
  return errors::IsTrainerGone(status) || errors::IsOwnerAway(status);
}

absl::Status CallWhile(bool (*is_away)(const absl::Status&), absl::Duration timeout,
                       const std::function<absl::Status()>& call) {
  const Clock& clock = Clock::Monotonic();
  const absl::Time deadline = clock.Now() + timeout;
  while (true) {
    absl::Status called = call();
    if (!is_away(called) || clock.Now() + kTrainerPollPeriod >= deadline) return called;
    absl::SleepFor(kTrainerPollPeriod);
  }
}

}  // namespace

absl::StatusOr<StepInfo> StepWithAllTrainers(OwnerLink& owner, const StepInput& input) {
  const Clock& clock = Clock::Monotonic();
  const absl::Time deadline = clock.Now() + input.timeout;
  StepInput attempt = input;
  while (true) {
    absl::StatusOr<StepInfo> info = owner.Step(attempt);
    if (!MayComeYet(info.status()) || clock.Now() + kTrainerPollPeriod >= deadline) return info;
    absl::SleepFor(kTrainerPollPeriod);
    // The rank that is missing refuses in time. An attempt that timed out just before that would
    // leave the step in doubt.
    attempt.timeout = std::max(deadline - clock.Now(), kLeastAttempt);
  }
}

absl::Status CallWithAllTrainers(absl::Duration timeout,
                                 const std::function<absl::Status()>& call) {
  return CallWhile(MayComeYet, timeout, call);
}

absl::Status CallOnceOwnersAreBack(absl::Duration timeout,
                                   const std::function<absl::Status()>& call) {
  return CallWhile(errors::IsOwnerAway, timeout, call);
}

}  // namespace optshard

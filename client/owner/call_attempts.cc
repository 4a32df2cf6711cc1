#include "client/owner/call_attempts.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/errors.h"

namespace optshard {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(50);
// An owner that ends at each of them does not come back to stay.
constexpr int kMostBegun = 8;

// Whether all ranks took part in something before it failed.
bool HasBegun(const RankExchange& exchange) { return exchange.begun() > 1; }

bool MayBeginAgain(const absl::Status& status, const RankExchange& exchange) {
  if (errors::IsTornStep(status)) {
    // Before the first exchange is made, a torn step is another rank's news: it steps, and has just
    // learned that the state is torn. Only a call that all ranks will make then may wait for it.
    const bool may_wait = HasBegun(exchange) || exchange.options().replaces_torn_state;
    return may_wait && exchange.options().owner->failure().ok();
  }
  return errors::IsTrainerGone(status) || errors::IsOwnerAway(status) || absl::IsAborted(status);
}

}  // namespace

absl::Status CallInAttempts(const RankExchange::Options& options,
                            const std::function<absl::Status(RankExchange&)>& attempt) {
  const Clock& clock = Clock::Monotonic();
  absl::Time since = clock.Now();
  RankExchange::Options next = options;
  int begun = 0;
  while (true) {
    RankExchange exchange(next);
    absl::Status called = attempt(exchange);
    if (!MayBeginAgain(called, exchange)) return called;
    // Of ABORTED all ranks are told together: all were there.
    if (HasBegun(exchange) || absl::IsAborted(called)) {
      since = clock.Now();
      if (++begun == kMostBegun) return called;
    }
    if (clock.Now() + kPause >= since + options.timeout) return called;
    next.first_timeout = std::max(next.first_timeout, exchange.options().timeout);
    absl::SleepFor(kPause);
  }
}

}  // namespace optshard

#include "server/coordinator/liveness.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

constexpr int kHeartbeatsPerLease = 5;
// Of a lease that leaves a choice.
constexpr absl::Duration kLongestHeartbeatPeriod = absl::Seconds(1);

absl::Duration ShortestHeartbeatPeriod(int world_size) {
  return absl::Seconds(1) * world_size / kMostHeartbeatsPerSecond;
}

}  // namespace

absl::Duration HeartbeatPeriod(absl::Duration lease, int world_size) {
  return std::min(lease / kHeartbeatsPerLease,
                  std::max(kLongestHeartbeatPeriod, ShortestHeartbeatPeriod(world_size)));
}

absl::Duration LeaseFor(absl::Duration lease, int world_size) {
  return std::max(lease, kHeartbeatsPerLease * ShortestHeartbeatPeriod(world_size));
}

absl::optional<Death> FindDeath(const Pulse& pulse, const LivenessOptions& options,
                                absl::Time now) {
  const absl::optional<BrokenSession>& broken = pulse.broken_session;
  if (broken.has_value() && now - broken->since >= broken->grace) {
    return Death{broken->since,
                 absl::StrCat("its connection to the coordinator broke and was not resumed within ",
                              absl::FormatDuration(broken->grace))};
  }
  const absl::Duration silence = now - pulse.last_heard;
  if (silence >= options.lease) {
    return Death{pulse.last_heard,
                 absl::StrCat("the coordinator has not heard from it for ",
                              absl::FormatDuration(absl::Trunc(silence, absl::Milliseconds(100))),
                              ", its lease is ", absl::FormatDuration(options.lease))};
  }
  return absl::nullopt;
}

}  // namespace optshard

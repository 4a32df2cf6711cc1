// What a trainer does at its shard server whose parameters are on a device.
#include <memory>

#include "absl/strings/str_format.h"
#include "client/owner/attached_owner.h"
#include "common/clock.h"
#include "common/device_wait.h"
#include "common/errors.h"
#include "common/link/device_segments.h"

namespace optshard {

ReplicaSegments::Place AttachedOwner::PlaceOf(const Options& options) {
  if (options.device == nullptr) return ReplicaSegments::OnHost();
  return std::make_shared<DeviceSegments>(options.device);
}

// What this process has put on its device is not ordered with what the server puts there.
absl::Status AttachedOwner::AwaitOwnWork(absl::Duration timeout) const {
  if (options_.device == nullptr) return absl::OkStatus();
  const Clock& clock = Clock::Monotonic();
  absl::Status done =
      AwaitStream(*options_.device, options_.current_stream(), clock.Now() + timeout, clock);
  if (done.ok()) return done;
  return errors::WithContext(
      done,
      absl::StrFormat("rank %d, before its shard server was asked for anything", options_.rank));
}

}  // namespace optshard

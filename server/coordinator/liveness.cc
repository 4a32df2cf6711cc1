#include "server/coordinator/liveness.h"

#include "absl/strings/str_cat.h"

namespace optshard {

absl::optional<Death> FindDeath(const Pulse& pulse, const LivenessOptions& options,
                                absl::Time now) {
  if (pulse.session_broken_since.has_value() &&
      now - *pulse.session_broken_since >= options.session_grace) {
    return Death{*pulse.session_broken_since,
                 absl::StrCat("its connection to the coordinator broke and was not resumed within ",
                              absl::FormatDuration(options.session_grace))};
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

// A small key-value store through which the processes of a data plane find each other. The
// coordinator keeps it.
#ifndef OPTSHARD_COMMON_DATAPLANE_RENDEZVOUS_H_
#define OPTSHARD_COMMON_DATAPLANE_RENDEZVOUS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace optshard {

// Keys exist for one generation of one optimizer. Thread-safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // OK also where the key already holds this value, so that a call can be repeated.
  //   ALREADY_EXISTS      the key holds another value
  //   RESOURCE_EXHAUSTED  this rank has put kMaxRendezvousKeys keys (common/request_limits.h)
  //   UNAVAILABLE         the coordinator cannot be reached
  // Where the group has failed: its failure.
  virtual absl::Status Put(absl::string_view key, absl::string_view value) = 0;

  // Waits for the key. The deadline is in the time of Clock::Monotonic(). DEADLINE_EXCEEDED naming
  // the key, or the group's failure where the group has failed.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_RENDEZVOUS_H_

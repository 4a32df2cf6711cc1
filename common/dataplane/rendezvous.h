// How the processes of a plane find each other: a small key-value store, kept by the coordinator.
#ifndef OPTSHARD_COMMON_DATAPLANE_RENDEZVOUS_H_
#define OPTSHARD_COMMON_DATAPLANE_RENDEZVOUS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace optshard {

// Thread-safe. Keys live for one generation of one optimizer.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // ALREADY_EXISTS where the key holds another value; the same value again is OK (a retry).
  // RESOURCE_EXHAUSTED beyond MaxRendezvousKeys keys of this rank (common/request_limits.h).
  virtual absl::Status Put(absl::string_view key, absl::string_view value) = 0;

  // Waits for the key. DEADLINE_EXCEEDED naming the key; the group's failure where it failed. The
  // deadline is in the time of Clock::Monotonic().
  virtual absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_RENDEZVOUS_H_

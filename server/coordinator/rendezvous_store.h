// The key-value store in which the processes of a data plane find each other.
#ifndef OPTSHARD_SERVER_COORDINATOR_RENDEZVOUS_STORE_H_
#define OPTSHARD_SERVER_COORDINATOR_RENDEZVOUS_STORE_H_

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/ids.h"

namespace optshard {

// Callbacks to run once no lock is held.
using Deferred = std::vector<std::function<void()>>;

// Holds the keys of one generation of one optimizer. Thread-compatible. It runs no callback itself
// but appends it to `deferred`. Fail must be called before the end, so that every Get is answered.
class RendezvousStore {
 public:
  using GetCallback = std::function<void(absl::StatusOr<std::string>)>;

  explicit RendezvousStore(int world_size) : key_counts_(world_size) {}

  // `rank` is who puts it. In the limits of request_limits.h:
  //   INVALID_ARGUMENT    an empty key, or a key or value that is too long
  //   ALREADY_EXISTS      the key holds another value
  //   RESOURCE_EXHAUSTED  the rank has put as many keys as it may
  // The same value again is OK.
  absl::Status Put(Rank rank, absl::string_view key, absl::string_view value, Deferred& deferred);

  // Calls back once: with the value as soon as it is there, with NOT_FOUND when Expire finds the
  // deadline past, with INVALID_ARGUMENT for a key that is too long, or with the status given to
  // Fail.
  void Get(absl::string_view key, absl::Time deadline, GetCallback callback, Deferred& deferred);

  void Expire(absl::Time now, Deferred& deferred);

  // Ends all waits, and all that begin later, with `reason`.
  void Fail(const absl::Status& reason, Deferred& deferred);

 private:
  struct Wait {
    std::string key;
    absl::Time deadline;
    GetCallback callback;
  };

  std::map<std::string, std::string, std::less<>> values_;
  std::vector<size_t> key_counts_;  // of each rank
  std::list<Wait> waits_;
  absl::Status failure_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_RENDEZVOUS_STORE_H_

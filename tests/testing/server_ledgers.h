// A running shard server, stopped at a moment that its ranks' ledgers tell: for tests that kill
// something then.
#ifndef OPTSHARD_TESTS_TESTING_SERVER_LEDGERS_H_
#define OPTSHARD_TESTS_TESTING_SERVER_LEDGERS_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/membership/membership.h"

namespace optshard::testing {

// Of one optimizer. Bound to a thread.
class ServerLedgers {
 public:
  // What each rank of the server would leave behind, in the order of the ranks.
  using Moment = std::function<bool(const std::vector<KeptState>&)>;

  // NOT_FOUND where the process has not begun `ranks` ledgers.
  static absl::StatusOr<ServerLedgers> Of(pid_t server, int ranks);
  ServerLedgers(ServerLedgers&& other) noexcept
      : server_(other.server_), pages_(std::exchange(other.pages_, {})) {}
  ~ServerLedgers();

  // Stops the server, with all its threads, at such a moment: it stays stopped. Looks again and
  // again, at other moments each time. DEADLINE_EXCEEDED where none came, with what it saw; then
  // the server runs on.
  absl::Status StopWhen(const Moment& moment, absl::Time deadline) const;
  void Continue() const;

  std::vector<KeptState> Read() const;

 private:
  explicit ServerLedgers(pid_t server) : server_(server) {}
  bool StopAllThreads(absl::Time deadline) const;

  pid_t server_;
  std::map<Rank, void*> pages_;
};

// Whether some rank has applied the step under way in part, or not all have: then it is torn.
bool IsTorn(const std::vector<KeptState>& kept);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_SERVER_LEDGERS_H_

#include "common/dataplane/gloo/connect_wire.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/dataplane/gloo/signals_blocked.h"
#include "common/errors.h"
#include "common/ids.h"

namespace optshard {
namespace {

constexpr absl::string_view kConnecting = "connecting the Gloo data plane";

std::string AddressKey(Generation generation, Rank of, Rank for_peer) {
  return absl::StrCat("gloo/", generation, "/", of, "/for/", for_peer);
}

// Cuts the connections at a deadline unless it is stopped before. Gloo itself waits for each
// connection as long as for all of them together. Bound to a thread.
class CutAtDeadline {
 public:
  CutAtDeadline(GlooWire& wire, absl::Time deadline) {
    const SignalsBlocked for_the_thread;
    thread_ = std::thread([this, &wire, deadline] {
      const absl::Duration left = deadline - Clock::Monotonic().Now();
      if (stopped_.WaitForNotificationWithTimeout(left)) return;
      wire.Cut();
      has_cut_ = true;
    });
  }
  ~CutAtDeadline() { Stop(); }

  CutAtDeadline(const CutAtDeadline&) = delete;
  CutAtDeadline& operator=(const CutAtDeadline&) = delete;

  // Returns whether it was too late. Idempotent.
  bool Stop() {
    if (thread_.joinable()) {
      stopped_.Notify();
      thread_.join();
    }
    return has_cut_;
  }

 private:
  absl::Notification stopped_;
  bool has_cut_ = false;  // the thread's until it has ended
  std::thread thread_;
};

}  // namespace

absl::Status ConnectWire(GlooWire& wire, const GlooPlaneOptions& options) {
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if (peer == options.rank) continue;
    const absl::StatusOr<std::string> address = wire.Listen(peer);
    if (!address.ok()) return errors::WithContext(address.status(), kConnecting);
    const absl::Status put =
        options.rendezvous->Put(AddressKey(options.generation, options.rank, peer), *address);
    if (!put.ok()) return errors::WithContext(put, kConnecting);
  }
  CutAtDeadline cut(wire, options.deadline);
  std::vector<Rank> late;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if (peer == options.rank) continue;
    if (Clock::Monotonic().Now() >= options.deadline) {
      late.push_back(peer);
      continue;
    }
    const absl::StatusOr<std::string> address = options.rendezvous->Get(
        AddressKey(options.generation, peer, options.rank), options.deadline);
    if (absl::IsDeadlineExceeded(address.status())) {
      late.push_back(peer);
      continue;
    }
    if (!address.ok()) return errors::WithContext(address.status(), kConnecting);
    const absl::Status connected = wire.Connect(peer, *address);
    if (connected.ok()) continue;
    // Gloo's own time-out is a few milliseconds short of the deadline.
    if (Clock::Monotonic().Now() + absl::Milliseconds(10) < options.deadline) {
      return errors::PeerLost(peer, absl::StrCat(kConnecting, ": ", connected.message()));
    }
    late.push_back(peer);
  }
  // The last one came just then.
  if (cut.Stop() && late.empty()) {
    late.push_back(options.rank == options.world_size - 1 ? options.rank - 1
                                                          : options.world_size - 1);
  }
  return late.empty() ? absl::OkStatus() : errors::PeersTimedOut(late, kConnecting);
}

}  // namespace optshard

#include "common/dataplane/gloo/connect_wire.h"

#include <algorithm>
#include <cstring>
#include <memory>
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
#include "common/dataplane/gloo/tcp_peers.h"
#include "common/dataplane/gloo/transfer.h"
#include "common/errors.h"
#include "common/ids.h"

namespace optshard {
namespace {

constexpr absl::string_view kConnecting = "connecting the Gloo data plane";

absl::StatusOr<WireAddress> ListenFor(Rank peer, GlooWire& wire) {
  const absl::StatusOr<std::string> address = wire.Listen(peer);
  if (!address.ok()) return address.status();
  WireAddress message;
  if (address->size() > sizeof message.address) {
    return absl::InternalError(absl::StrCat("Gloo gives an address of ", address->size(),
                                            " bytes, expected at most ", sizeof message.address));
  }
  message.bytes = static_cast<uint32_t>(address->size());
  std::memcpy(message.address, address->data(), address->size());
  return message;
}

// Waits for the peer's address, which may come into `message` even after an error, until the
// messages are cut. DEADLINE_EXCEEDED where it does not come in time; what the rendezvous says
// where the group has failed meanwhile.
absl::StatusOr<std::string> AddressFrom(Rank peer, SmallMessages& messages,
                                        const GlooPlaneOptions& options, WireAddress* message) {
  const absl::StatusOr<std::unique_ptr<Transfer>> transfer =
      messages.Receive(peer, WireAddress::kSlot, message, sizeof *message);
  if (!transfer.ok()) return errors::PeerLost(peer, transfer.status().message());
  auto outcome = Transfer::Outcome::kTimedOut;
  while (outcome == Transfer::Outcome::kTimedOut) {
    std::string why;
    const absl::Duration left = options.deadline - Clock::Monotonic().Now();
    outcome = (*transfer)->Wait(std::clamp(left, absl::ZeroDuration(), kGroupLookInterval), &why);
    if (outcome == Transfer::Outcome::kBroken) {
      return errors::PeerLost(peer, absl::StrCat(kConnecting, ": ", why));
    }
    if (outcome == Transfer::Outcome::kDone) break;
    if (left <= kGroupLookInterval) return absl::DeadlineExceededError(kConnecting);
    // A peer whose host is gone says nothing any more. The rendezvous knows it.
    absl::Status group = LookAtGroup(options);
    if (!group.ok()) return group;
  }
  if (message->bytes > sizeof message->address) {
    return absl::InternalError(absl::StrCat(kConnecting, ": rank ", peer, " sends an address of ",
                                            message->bytes, " bytes, expected at most ",
                                            sizeof message->address));
  }
  return std::string(message->address, message->bytes);
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

// As ConnectWire. The addresses of the others, by rank, outlive the messages' use of them.
absl::Status Connect(GlooWire& wire, SmallMessages& messages, const GlooPlaneOptions& options,
                     std::vector<WireAddress>* addresses) {
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if (peer == options.rank) continue;
    const absl::StatusOr<WireAddress> address = ListenFor(peer, wire);
    if (!address.ok()) return errors::WithContext(address.status(), kConnecting);
    const auto sent = messages.Send(peer, WireAddress::kSlot, &*address, sizeof *address);
    if (!sent.ok()) return errors::PeerLost(peer, sent.status().message());
  }
  messages.Flush();
  CutAtDeadline cut(wire, options.deadline);
  std::vector<Rank> late;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if (peer == options.rank) continue;
    const absl::StatusOr<std::string> address =
        AddressFrom(peer, messages, options, &(*addresses)[peer]);
    if (absl::IsDeadlineExceeded(address.status())) {
      late.push_back(peer);
      continue;
    }
    if (!address.ok()) return address.status();
    // Too late to connect, but not because of this one.
    if (Clock::Monotonic().Now() >= options.deadline) continue;
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

}  // namespace

absl::Status ConnectWire(GlooWire& wire, SmallMessages& messages, const GlooPlaneOptions& options) {
  std::vector<WireAddress> addresses(options.world_size);
  absl::Status connected = Connect(wire, messages, options, &addresses);
  // From here on nothing may be written into the addresses.
  if (!connected.ok()) messages.Cut();
  return connected;
}

}  // namespace optshard

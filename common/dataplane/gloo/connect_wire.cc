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

// Waits for the peer's address. DEADLINE_EXCEEDED where it does not come in time.
absl::StatusOr<std::string> AddressFrom(Rank peer, SmallMessages& messages, absl::Time deadline) {
  WireAddress message;
  const absl::StatusOr<std::unique_ptr<Transfer>> transfer =
      messages.Receive(peer, WireAddress::kSlot, &message, sizeof message);
  if (!transfer.ok()) return errors::PeerLost(peer, transfer.status().message());
  std::string why;
  const absl::Duration left = deadline - Clock::Monotonic().Now();
  switch ((*transfer)->Wait(std::max(left, absl::ZeroDuration()), &why)) {
    case Transfer::Outcome::kDone:
      break;
    case Transfer::Outcome::kBroken:
      return errors::PeerLost(peer, absl::StrCat(kConnecting, ": ", why));
    case Transfer::Outcome::kTimedOut:
    case Transfer::Outcome::kAborted:
      // From here on nothing may be written into `message`.
      messages.Cut();
      return absl::DeadlineExceededError(kConnecting);
  }
  if (message.bytes > sizeof message.address) {
    return absl::InternalError(absl::StrCat(kConnecting, ": rank ", peer, " sends an address of ",
                                            message.bytes, " bytes, expected at most ",
                                            sizeof message.address));
  }
  return std::string(message.address, message.bytes);
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

absl::Status ConnectWire(GlooWire& wire, SmallMessages& messages, const GlooPlaneOptions& options) {
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
    if (Clock::Monotonic().Now() >= options.deadline) {
      late.push_back(peer);
      continue;
    }
    const absl::StatusOr<std::string> address = AddressFrom(peer, messages, options.deadline);
    if (absl::IsDeadlineExceeded(address.status())) {
      late.push_back(peer);
      continue;
    }
    if (!address.ok()) return address.status();
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

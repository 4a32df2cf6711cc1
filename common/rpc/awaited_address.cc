#include "common/rpc/awaited_address.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/network_choice.h"

namespace optshard {

absl::StatusOr<std::string> AwaitAddressTowards(const std::string& peer, const AddressWait& wait) {
  const absl::Time start = wait.clock->Now();
  absl::Time say_at = start;
  while (true) {
    absl::StatusOr<std::string> address =
        wait.address_towards ? wait.address_towards(peer) : AddressTowards(peer);
    if (!absl::IsUnavailable(address.status())) return address;
    const absl::Time now = wait.clock->Now();
    const absl::Duration waited = now - start;
    if (waited >= wait.timeout) {
      return absl::UnavailableError(
          absl::StrCat(address.status().message(), "; waited for ",
                       absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(100))),
                       ": check the address, and that the network's names lead there"));
    }
    if (wait.say && now >= say_at) {
      wait.say(absl::StrCat(
          address.status().message(), "; waiting for it, for at most ",
          absl::FormatDuration(absl::Trunc(wait.timeout - waited, absl::Milliseconds(100)))));
      say_at = now + wait.say_every;
    }
    if (!wait.sleep(std::min(wait.pause, wait.timeout - waited))) {
      return absl::CancelledError(absl::StrCat("asked to end while waiting for ", peer));
    }
  }
}

}  // namespace optshard

// The address towards a peer whose name may not be known yet: in a cluster a name appears some time
// after the process that it belongs to was asked for.
#ifndef OPTSHARD_COMMON_RPC_AWAITED_ADDRESS_H_
#define OPTSHARD_COMMON_RPC_AWAITED_ADDRESS_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace optshard {

struct AddressWait {
  absl::Duration timeout = absl::Minutes(5);
  absl::Duration pause = absl::Seconds(1);       // between two attempts
  absl::Duration say_every = absl::Seconds(30);  // and after the first failure
  // Waits for so long. False: the caller is to end.
  std::function<bool(absl::Duration)> sleep;
  // Tells people that it still waits, for whom and why.
  std::function<void(const std::string& message)> say;
  // network_choice.h's, unless a test has another one.
  std::function<absl::StatusOr<std::string>(const std::string& peer)> address_towards;
  const Clock* clock = &Clock::Monotonic();
};

// As AddressTowards (network_choice.h), but waits while the peer's name cannot be resolved or no
// route leads there. UNAVAILABLE with the last reason after the timeout; CANCELLED where `sleep`
// has said so; INVALID_ARGUMENT at once. One attempt may take as long as the system's resolver
// takes.
absl::StatusOr<std::string> AwaitAddressTowards(const std::string& peer, const AddressWait& wait);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_RPC_AWAITED_ADDRESS_H_

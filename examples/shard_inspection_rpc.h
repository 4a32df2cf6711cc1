// Reads from a shard owner over gRPC, as any client can while training runs. The functions are
// thread-safe. Their errors are those that proto/optshard/v1/shard_owner.proto lists, with the
// address; UNAVAILABLE where nobody answers there, and DEADLINE_EXCEEDED after `timeout`.
#ifndef OPTSHARD_EXAMPLES_SHARD_INSPECTION_RPC_H_
#define OPTSHARD_EXAMPLES_SHARD_INSPECTION_RPC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace optshard {

// Names one shard owner: a server may host several ranks and optimizers at one address.
struct OwnerName {
  std::string address;  // HOST:PORT
  std::string optimizer;
  int rank = 0;
};

// A one-line summary of the owner, then one line for each slice that it owns.
absl::StatusOr<std::vector<std::string>> ListParametersOf(const OwnerName& owner,
                                                          absl::Duration timeout);

// How many bytes of optimizer state the owner keeps, in all slots.
absl::StatusOr<int64_t> StateBytesOf(const OwnerName& owner, absl::Duration timeout);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_SHARD_INSPECTION_RPC_H_

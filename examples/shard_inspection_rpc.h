// Reads from a live shard owner over gRPC, as any client may while training runs.
#ifndef OPTSHARD_EXAMPLES_SHARD_INSPECTION_RPC_H_
#define OPTSHARD_EXAMPLES_SHARD_INSPECTION_RPC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace optshard {

// Which owner: a server may host several ranks and optimizers at one address.
struct OwnerName {
  std::string address;  // HOST:PORT
  std::string optimizer;
  int rank = 0;
};

// The owner's one-line summary, then one line for each parameter that it owns. UNAVAILABLE naming
// the address where nobody answers.
absl::StatusOr<std::vector<std::string>> ListParametersOf(const OwnerName& owner,
                                                          absl::Duration timeout);

// How many bytes of optimizer state the owner keeps.
absl::StatusOr<int64_t> StateBytesOf(const OwnerName& owner, absl::Duration timeout);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_SHARD_INSPECTION_RPC_H_

// Looks into a live shard owner over gRPC, as any client may while training runs.
#ifndef OPTSHARD_EXAMPLES_SHARD_INSPECTION_RPC_H_
#define OPTSHARD_EXAMPLES_SHARD_INSPECTION_RPC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace optshard {

// The owner's one-line summary, then one line a parameter that it owns. UNAVAILABLE naming the
// address where nobody answers.
absl::StatusOr<std::vector<std::string>> ListParametersOf(const std::string& owner_address,
                                                          const std::string& optimizer,
                                                          absl::Duration timeout);

// Bytes of the optimizer state that it keeps.
absl::StatusOr<int64_t> StateBytesOf(const std::string& owner_address, const std::string& optimizer,
                                     absl::Duration timeout);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_SHARD_INSPECTION_RPC_H_

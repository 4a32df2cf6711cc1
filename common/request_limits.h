// How large a request to a server may be. A server checks these limits before it computes anything
// from a request, so that nothing a client sends can exhaust its memory or keep it busy for
// minutes. They lie far above what is trained today.
#ifndef OPTSHARD_COMMON_REQUEST_LIMITS_H_
#define OPTSHARD_COMMON_REQUEST_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace optshard {

// --- Counts.

// Plans, votes and owner lists have one entry a rank.
constexpr int kMaxWorldSize = 1 << 16;
// The largest mixture-of-experts models have about 10^5 tensors. A spec of so many, with names,
// stays below kMaxLocalMessageBytes and below the limit of an RPC.
constexpr int kMaxParameters = 1 << 18;
// A trainer's doorbell reserves 4 KiB of hyperparameters a group: at most 64 MiB.
constexpr int kMaxGroups = 1 << 14;
// PyTorch's own limit.
constexpr int kMaxDimensions = 64;
// The memory layout searches the devices of a group for each parameter.
constexpr int kMaxDevices = 64;
// No rule has a tenth of them.
constexpr int kMaxHyperparametersPerGroup = 64;
// Of one job. Each has a group of members at the coordinator, and memory at a shard server.
constexpr size_t kMaxOptimizers = 256;

// --- Products. Each factor alone may be large.

// World size times parameters: partitioning looks at each rank for each parameter, which takes half
// a second for so many.
constexpr int64_t kMaxRanksTimesParameters = int64_t{1} << 28;
// Pieces that buckets consist of: about 150 bytes each, so 600 MiB.
constexpr int64_t kMaxBucketPieces = int64_t{1} << 22;

// --- Text. It stands in errors and logs.

constexpr size_t kMaxParameterNameBytes = 1024;
// Of a job, an optimizer, a rule, a device, a node, an address, a hyperparameter, a request id.
constexpr size_t kMaxNameBytes = 256;

// --- What ranks leave at the rendezvous: addresses, of a few hundred bytes.
constexpr size_t kMaxRendezvousValueBytes = size_t{64} << 10;
// Of one rank: what it tells all others. What it tells one of them goes over their connection, or
// the coordinator would keep the square of the world size.
constexpr size_t kMaxRendezvousKeys = 16;

// --- Messages between processes of one host. A message of 2-byte elements takes some 25 times its
// size once it is decoded.
constexpr size_t kMaxLocalMessageBytes = size_t{32} << 20;

// INVALID_ARGUMENT with `what` ("the optimizer's name"), the length and the limit. The text itself
// does not appear: it may be megabytes.
absl::Status CheckLength(absl::string_view what, absl::string_view text,
                         size_t most = kMaxNameBytes);

// INVALID_ARGUMENT with `what` ("the number of param groups"), the count and the limit.
absl::Status CheckCount(absl::string_view what, int64_t count, int64_t most);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_REQUEST_LIMITS_H_

// How shard owners describe themselves.
#ifndef OPTSHARD_SERVER_COORDINATOR_INSPECTION_SHARD_DESCRIPTIONS_RPC_H_
#define OPTSHARD_SERVER_COORDINATOR_INSPECTION_SHARD_DESCRIPTIONS_RPC_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/optshard/v1/shard_owner.pb.h"
#include "server/coordinator/inspection/job_view.h"
#include "server/coordinator/inspection/owner_calls_rpc.h"

namespace optshard {

// By owner. INTERNAL where an answer is another rank's or has impossible numbers.
std::vector<absl::StatusOr<v1::ShardDescription>> DescribeShards(
    const JobView& view, absl::Span<const OwnerToAsk> owners, const CallPatience& patience);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_INSPECTION_SHARD_DESCRIPTIONS_RPC_H_

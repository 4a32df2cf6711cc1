// Turns what a view shows into the messages of proto/optshard/v1/shard_owner.proto, with a summary
// in each.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_OWNER_RPC_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_OWNER_RPC_H_

#include "absl/status/statusor.h"
#include "proto/optshard/v1/shard_owner.pb.h"
#include "server/shard/inspection/shard_view.h"

namespace optshard {

constexpr int kDefaultPageSize = 100;
constexpr int kLargestPageSize = 1000;
// A page ends once it has grown to this, also where fewer slices than asked for are in it: clients
// refuse replies of more than 4 MiB.
constexpr size_t kPageBytes = 1 << 20;
constexpr int64_t kChunkElements = 64 << 10;

v1::ShardDescription ToProto(const ShardDescription& description);
v1::OwnedParameter ToProto(const OwnedSlice& slice);

// INVALID_ARGUMENT for a negative page size, or for a token that no call has returned.
absl::StatusOr<v1::ListParametersResponse> ListParameters(const ShardView& view,
                                                          const v1::ListParametersRequest& request);

// Which elements of which parameter a request is for.
struct SlotRange {
  int32_t parameter = 0;
  std::string name;
  int64_t offset_elements = 0;
  int64_t elements = 0;
};

// NOT_FOUND: no owned parameter has the name; some of the owned ones are listed.
// INVALID_ARGUMENT: a negative number. OUT_OF_RANGE: the range ends beyond the largest int64.
// Whether the range is owned is for the view to say.
absl::StatusOr<SlotRange> FindSlotRange(const ShardView& view, const v1::ReadSlotRequest& request);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_OWNER_RPC_H_

#include "server/coordinator/inspection/shard_descriptions_rpc.h"

#include "absl/strings/str_format.h"
#include "proto/optshard/v1/shard_owner.grpc.pb.h"

namespace optshard {

std::vector<absl::StatusOr<v1::ShardDescription>> DescribeShards(
    const JobView& view, absl::Span<const OwnerToAsk> owners, const CallPatience& patience) {
  std::vector<v1::DescribeShardRequest> requests(owners.size());
  for (size_t i = 0; i < owners.size(); ++i) view.SetOwner(owners[i].rank, requests[i]);
  std::vector<absl::StatusOr<v1::ShardDescription>> answers = AskOwners<v1::ShardOwner>(
      owners, absl::MakeConstSpan(requests),
      static_cast<void (v1::ShardOwner::StubInterface::async_interface::*)(
          grpc::ClientContext*, const v1::DescribeShardRequest*, v1::ShardDescription*,
          std::function<void(grpc::Status)>)>(
          &v1::ShardOwner::StubInterface::async_interface::DescribeShard),
      patience);
  for (size_t i = 0; i < owners.size(); ++i) {
    if (!answers[i].ok()) continue;
    const v1::ShardDescription& told = *answers[i];
    if (told.rank() == owners[i].rank && told.state_bytes() >= 0 && told.phase_us() >= 0) continue;
    answers[i] = absl::InternalError(
        absl::StrFormat("it answers as rank %d, with %d bytes of state, for %d us in its phase",
                        told.rank(), told.state_bytes(), told.phase_us()));
  }
  return answers;
}

}  // namespace optshard

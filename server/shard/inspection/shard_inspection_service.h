// The ShardInspection service of proto/optshard/v1/inspection.proto.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_INSPECTION_SERVICE_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_INSPECTION_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "proto/optshard/v1/inspection.grpc.pb.h"
#include "server/shard/inspection/idle_scans.h"
#include "server/shard/inspection/shard_view_registry.h"

namespace optshard {

// Thread-safe.
class ShardInspectionService final : public v1::ShardInspection::Service {
 public:
  // `views` outlives the service.
  explicit ShardInspectionService(ShardViewRegistry* views) : views_(views), scans_(views) {}

  grpc::Status DescribeSlots(grpc::ServerContext* context, const v1::DescribeSlotsRequest* request,
                             v1::DescribeSlotsResponse* response) override;
  grpc::Status ListSteps(grpc::ServerContext* context, const v1::ListShardStepsRequest* request,
                         v1::ListShardStepsResponse* response) override;

 private:
  absl::Status Describe(const v1::DescribeSlotsRequest& request,
                        v1::DescribeSlotsResponse* response);

  ShardViewRegistry* const views_;
  IdleScans scans_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_INSPECTION_SERVICE_H_

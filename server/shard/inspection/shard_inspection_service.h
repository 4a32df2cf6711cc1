// The ShardInspection service of proto/optshard/v1/inspection.proto.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_INSPECTION_SERVICE_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_INSPECTION_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/optshard/v1/inspection.grpc.pb.h"
#include "server/shard/inspection/shard_view_registry.h"

namespace optshard {

// Goes through values for one call at a time; the others wait. Finds a view for each piece of work
// anew, so that an owner that goes away waits for one piece. Thread-safe.
class ShardInspectionService final : public v1::ShardInspection::Service {
 public:
  // `views` outlives the service.
  explicit ShardInspectionService(ShardViewRegistry* views) : views_(views) {}

  grpc::Status DescribeSlots(grpc::ServerContext* context, const v1::DescribeSlotsRequest* request,
                             v1::DescribeSlotsResponse* response) override;
  grpc::Status ListSteps(grpc::ServerContext* context, const v1::ListShardStepsRequest* request,
                         v1::ListShardStepsResponse* response) override;

 private:
  class Turn;

  absl::Status Describe(const v1::DescribeSlotsRequest& request,
                        v1::DescribeSlotsResponse* response);
  // What Describe has left out.
  absl::Status AddStatistics(const v1::DescribeSlotsRequest& request,
                             absl::FunctionRef<absl::Status()> proceed,
                             v1::DescribeSlotsResponse* response);

  ShardViewRegistry* const views_;
  absl::Mutex mutex_;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;  // that scan or wait
  bool scanning_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_SHARD_INSPECTION_SERVICE_H_

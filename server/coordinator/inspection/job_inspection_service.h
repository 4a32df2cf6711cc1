// The JobInspection service of proto/optshard/v1/inspection.proto.
#ifndef OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_INSPECTION_SERVICE_H_
#define OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_INSPECTION_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "proto/optshard/v1/inspection.grpc.pb.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/inspection/job_plan.h"

namespace optshard {

// Calls have threads of gRPC's synchronous services, apart from the coordinator's duties, which are
// all callbacks; of the coordinator they take what GetStatus and, once a generation, GetPlan take.
// Few run at once. All end soon after their client has gone. Thread-safe.
class JobInspectionService final : public v1::JobInspection::Service {
 public:
  // `coordinator` outlives the service's calls.
  explicit JobInspectionService(const Coordinator* coordinator)
      : coordinator_(*coordinator), plans_(coordinator) {}

  grpc::Status DescribeJob(grpc::ServerContext* context, const v1::DescribeJobRequest* request,
                           v1::JobDescription* response) override;
  grpc::Status ListParameters(grpc::ServerContext* context,
                              const v1::ListJobParametersRequest* request,
                              v1::ListJobParametersResponse* response) override;
  grpc::Status GetStatistics(grpc::ServerContext* context, const v1::GetStatisticsRequest* request,
                             v1::GetStatisticsResponse* response) override;
  grpc::Status ListGroups(grpc::ServerContext* context, const v1::ListGroupsRequest* request,
                          v1::ListGroupsResponse* response) override;
  grpc::Status ReadValues(grpc::ServerContext* context, const v1::ReadValuesRequest* request,
                          v1::ReadValuesResponse* response) override;
  grpc::Status ListSteps(grpc::ServerContext* context, const v1::ListStepsRequest* request,
                         v1::ListStepsResponse* response) override;

 private:
  template <typename Request, typename Response, typename Answer>
  grpc::Status Serve(grpc::ServerContext* context, const Request& request, Response* response,
                     bool needs_plan, absl::Duration patience, const Answer& answer);

  const Coordinator& coordinator_;
  JobPlans plans_;
  std::atomic<int> calls_{0};
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_INSPECTION_SERVICE_H_

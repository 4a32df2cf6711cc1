// The coordinator over gRPC: maps messages to the domain class and back. Holds no thread while a
// member waits.
#ifndef OPTSHARD_SERVER_COORDINATOR_COORDINATOR_SERVICE_H_
#define OPTSHARD_SERVER_COORDINATOR_COORDINATOR_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include "proto/optshard/v1/coordinator.grpc.pb.h"
#include "server/coordinator/coordinator.h"

namespace optshard {

// Thread-safe. To shut down, first shut down the coordinator, which ends the calls that wait, then
// the gRPC server. Both outlive the service's calls.
class CoordinatorService final : public v1::Coordinator::CallbackService {
 public:
  explicit CoordinatorService(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchEvent>* Watch(grpc::CallbackServerContext* context,
                                                  const v1::WatchRequest* request) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* ReportFailure(grpc::CallbackServerContext* context,
                                          const v1::ReportFailureRequest* request,
                                          v1::ReportFailureResponse* response) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const v1::LeaveRequest* request,
                                  v1::LeaveResponse* response) override;
  grpc::ServerUnaryReactor* PutRendezvous(grpc::CallbackServerContext* context,
                                          const v1::PutRendezvousRequest* request,
                                          v1::PutRendezvousResponse* response) override;
  grpc::ServerUnaryReactor* GetRendezvous(grpc::CallbackServerContext* context,
                                          const v1::GetRendezvousRequest* request,
                                          v1::GetRendezvousResponse* response) override;
  grpc::ServerUnaryReactor* ProposeGrowth(grpc::CallbackServerContext* context,
                                          const v1::ProposeGrowthRequest* request,
                                          v1::ProposeGrowthResponse* response) override;
  grpc::ServerUnaryReactor* GetOwners(grpc::CallbackServerContext* context,
                                      const v1::GetOwnersRequest* request,
                                      v1::GetOwnersResponse* response) override;
  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext* context,
                                    const v1::GetPlanRequest* request,
                                    v1::GetPlanResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::JobStatus* response) override;

 private:
  Coordinator* const coordinator_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_COORDINATOR_SERVICE_H_

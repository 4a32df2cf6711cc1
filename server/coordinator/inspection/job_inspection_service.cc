#include "server/coordinator/inspection/job_inspection_service.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/rpc/status_rpc.h"
#include "server/coordinator/inspection/job_description_rpc.h"
#include "server/coordinator/inspection/job_parameters_rpc.h"
#include "server/coordinator/inspection/job_steps_rpc.h"
#include "server/coordinator/inspection/job_values_rpc.h"
#include "server/coordinator/inspection/job_view.h"
#include "server/coordinator/inspection/owner_calls_rpc.h"

namespace optshard {
namespace {

constexpr int kMostCalls = 4;
// For all owners together.
constexpr absl::Duration kPatience = absl::Seconds(3);
constexpr absl::Duration kPatienceWithStatistics = absl::Seconds(50);
// Of the client's own time, so that it gets an answer when some owners do not.
constexpr double kShareOfTheClients = 0.8;

CallPatience PatienceOf(const grpc::ServerContext* context, absl::Duration most) {
  const absl::Duration left =
      absl::FromChrono(context->deadline() - std::chrono::system_clock::now());
  CallPatience patience;
  patience.deadline = Clock::Monotonic().Now() + std::min(most, kShareOfTheClients * left);
  patience.ended = [context] { return context->IsCancelled(); };
  return patience;
}

}  // namespace

template <typename Request, typename Response, typename Answer>
grpc::Status JobInspectionService::Serve(grpc::ServerContext* context, const Request& request,
                                         Response* response, bool needs_plan,
                                         absl::Duration patience, const Answer& answer) {
  absl::Status status;
  if (calls_.fetch_add(1) >= kMostCalls) {
    status = absl::ResourceExhaustedError(
        absl::StrFormat("%d calls look into the job already; ask again", kMostCalls));
  } else {
    const absl::StatusOr<JobView> view =
        OpenJobView(coordinator_, plans_, request.optimizer(), needs_plan);
    status = view.status();
    if (view.ok()) {
      absl::StatusOr<Response> answered = answer(*view, request, PatienceOf(context, patience));
      status = answered.status();
      if (answered.ok()) *response = *std::move(answered);
    }
  }
  calls_.fetch_sub(1);
  return ToGrpc(status);
}

grpc::Status JobInspectionService::DescribeJob(grpc::ServerContext* context,
                                               const v1::DescribeJobRequest* request,
                                               v1::JobDescription* response) {
  return Serve(context, *request, response, false, kPatience, optshard::DescribeJob);
}

grpc::Status JobInspectionService::ListParameters(grpc::ServerContext* context,
                                                  const v1::ListJobParametersRequest* request,
                                                  v1::ListJobParametersResponse* response) {
  return Serve(context, *request, response, true, kPatience, ListJobParameters);
}

grpc::Status JobInspectionService::GetStatistics(grpc::ServerContext* context,
                                                 const v1::GetStatisticsRequest* request,
                                                 v1::GetStatisticsResponse* response) {
  return Serve(context, *request, response, true, kPatienceWithStatistics, optshard::GetStatistics);
}

grpc::Status JobInspectionService::ListGroups(grpc::ServerContext* context,
                                              const v1::ListGroupsRequest* request,
                                              v1::ListGroupsResponse* response) {
  return Serve(context, *request, response, true, kPatience, optshard::ListGroups);
}

grpc::Status JobInspectionService::ReadValues(grpc::ServerContext* context,
                                              const v1::ReadValuesRequest* request,
                                              v1::ReadValuesResponse* response) {
  return Serve(context, *request, response, true, kPatience, optshard::ReadValues);
}

grpc::Status JobInspectionService::ListSteps(grpc::ServerContext* context,
                                             const v1::ListStepsRequest* request,
                                             v1::ListStepsResponse* response) {
  return Serve(context, *request, response, true, kPatience, optshard::ListSteps);
}

}  // namespace optshard

#include "server/coordinator/coordinator_service.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/membership/common_proto.h"
#include "common/membership/growth_rpc.h"
#include "common/membership/membership_rpc.h"
#include "common/rpc/status_rpc.h"
#include "server/coordinator/status_page_rpc.h"
#include "server/coordinator/watch_stream_service.h"

namespace optshard {
namespace {

constexpr int64_t kLongestWaitMs = 10'000;

Caller CallerOf(const v1::CallHeader& header) {
  return Caller{MemberOf(header), header.generation()};
}

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* CoordinatorService::Join(grpc::CallbackServerContext* context,
                                                   const v1::JoinRequest* request,
                                                   v1::JoinResponse* response) {
  const absl::StatusOr<JoinRequest> join = FromProto(*request);
  if (!join.ok()) return Answer(context, join.status());
  const absl::StatusOr<JoinReply> reply = coordinator_->Join(*join);
  if (reply.ok()) *response = ToProto(*reply);
  return Answer(context, reply.status());
}

grpc::ServerWriteReactor<v1::WatchEvent>* CoordinatorService::Watch(
    grpc::CallbackServerContext*, const v1::WatchRequest* request) {
  return StartWatchStream(coordinator_, CallerOf(request->header()), request->after_sequence());
}

grpc::ServerUnaryReactor* CoordinatorService::Heartbeat(grpc::CallbackServerContext* context,
                                                        const v1::HeartbeatRequest* request,
                                                        v1::HeartbeatResponse* response) {
  const absl::StatusOr<StepProgress> progress = FromProto(request->progress());
  if (!progress.ok()) return Answer(context, progress.status());
  const absl::StatusOr<Coordinator::Answer> news =
      coordinator_->Heartbeat(CallerOf(request->header()), *progress);
  if (news.ok() && !news->failure.ok()) *response->mutable_failure() = ToProto(news->failure);
  return Answer(context, news.status());
}

grpc::ServerUnaryReactor* CoordinatorService::ReportFailure(grpc::CallbackServerContext* context,
                                                            const v1::ReportFailureRequest* request,
                                                            v1::ReportFailureResponse* response) {
  const absl::StatusOr<StepProgress> progress = FromProto(request->progress());
  if (!progress.ok()) return Answer(context, progress.status());
  const absl::StatusOr<Coordinator::Answer> news =
      coordinator_->ReportFailure(CallerOf(request->header()), *progress, request->suspect_rank(),
                                  FromProto(request->observed()));
  if (news.ok() && !news->failure.ok()) *response->mutable_failure() = ToProto(news->failure);
  return Answer(context, news.status());
}

grpc::ServerUnaryReactor* CoordinatorService::Leave(grpc::CallbackServerContext* context,
                                                    const v1::LeaveRequest* request,
                                                    v1::LeaveResponse*) {
  const absl::StatusOr<StepProgress> progress = FromProto(request->progress());
  if (!progress.ok()) return Answer(context, progress.status());
  return Answer(context, coordinator_->Leave(CallerOf(request->header()), *progress));
}

grpc::ServerUnaryReactor* CoordinatorService::PutRendezvous(grpc::CallbackServerContext* context,
                                                            const v1::PutRendezvousRequest* request,
                                                            v1::PutRendezvousResponse*) {
  return Answer(context, coordinator_->PutRendezvous(CallerOf(request->header()), request->key(),
                                                     request->value()));
}

grpc::ServerUnaryReactor* CoordinatorService::GetRendezvous(grpc::CallbackServerContext* context,
                                                            const v1::GetRendezvousRequest* request,
                                                            v1::GetRendezvousResponse* response) {
  // Lives until it is finished, which the coordinator's shutdown brings about at the latest.
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Duration wait =
      absl::Milliseconds(std::clamp<int64_t>(request->wait_ms(), 0, kLongestWaitMs));
  coordinator_->GetRendezvous(CallerOf(request->header()), request->key(), wait,
                              [reactor, response](absl::StatusOr<std::string> value) {
                                if (value.ok()) response->set_value(*value);
                                reactor->Finish(ToGrpc(value.status()));
                              });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::ProposeGrowth(grpc::CallbackServerContext* context,
                                                            const v1::ProposeGrowthRequest* request,
                                                            v1::ProposeGrowthResponse* response) {
  const absl::StatusOr<GrowthProposal> proposal = FromProto(*request);
  if (!proposal.ok()) return Answer(context, proposal.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Duration wait =
      absl::Milliseconds(std::clamp<int64_t>(request->wait_ms(), 0, kLongestWaitMs));
  coordinator_->ProposeGrowth(CallerOf(request->header()), *proposal, wait,
                              [reactor, response](absl::StatusOr<GrowthAnswer> answer) {
                                if (answer.ok()) *response = ToProto(*answer);
                                reactor->Finish(ToGrpc(answer.status()));
                              });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::GetOwners(grpc::CallbackServerContext* context,
                                                        const v1::GetOwnersRequest* request,
                                                        v1::GetOwnersResponse* response) {
  const absl::StatusOr<OwnerPage> page =
      coordinator_->GetOwners(request->optimizer(), request->first_rank());
  if (page.ok()) *response = ToProto(*page);
  return Answer(context, page.status());
}

grpc::ServerUnaryReactor* CoordinatorService::GetPlan(grpc::CallbackServerContext* context,
                                                      const v1::GetPlanRequest* request,
                                                      v1::GetPlanResponse* response) {
  const absl::StatusOr<OptimizerPlan> plan = coordinator_->GetPlan(request->optimizer());
  if (plan.ok()) *response = ToProto(*plan);
  return Answer(context, plan.status());
}

grpc::ServerUnaryReactor* CoordinatorService::GetStatus(grpc::CallbackServerContext* context,
                                                        const v1::GetStatusRequest* request,
                                                        v1::JobStatus* response) {
  absl::StatusOr<v1::JobStatus> page =
      StatusPage(coordinator_->GetStatus(request->optimizer()), *request);
  const absl::Status status = page.status();
  if (status.ok()) *response = *std::move(page);
  return Answer(context, status);
}

}  // namespace optshard

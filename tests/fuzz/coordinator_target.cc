#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/membership/common_proto.h"
#include "common/membership/growth.h"
#include "common/membership/growth_rpc.h"
#include "common/membership/membership_rpc.h"
#include "common/optimizer_spec.h"
#include "common/parameter_space.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/status_rpc.h"
#include "common/spec_growth.h"
#include "proto/optshard/v1/checkpoint.grpc.pb.h"
#include "proto/optshard/v1/coordinator.grpc.pb.h"
#include "proto/optshard/v1/inspection.grpc.pb.h"
#include "server/coordinator/coordinator_server.h"
#include "tests/fuzz/answer_check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/coordinator/join_requests.h"

namespace optshard::testing {
namespace {

constexpr int kWorldSize = 2;
constexpr absl::Duration kPatience = absl::Seconds(30);
// Of calls that may wait for something that never comes.
constexpr absl::Duration kShortWait = absl::Milliseconds(3);

// A coordinator that listens, whose two ranks have joined.
class CoordinatorTarget final : public FuzzTarget {
 public:
  CoordinatorTarget() {
    CoordinatorServer::Options options;
    options.coordinator.group.job = TestJoin(0, kWorldSize).job;
    options.coordinator.group.world_size = kWorldSize;
    options.coordinator.group.liveness.lease = absl::Hours(1);
    server_ = CoordinatorServer::Start(options).value();
    const auto channel = MakeChannel(server_->address());
    stub_ = v1::Coordinator::NewStub(channel);
    inspection_ = v1::JobInspection::NewStub(channel);
    checkpoints_ = v1::Checkpoints::NewStub(channel);
  }

  std::vector<FuzzRequest> Seeds() override {
    std::vector<FuzzRequest> seeds;
    std::vector<Incarnation> incarnations;
    for (Rank rank = 0; rank < kWorldSize; ++rank) {
      const JoinRequest join = TestJoin(rank, kWorldSize);
      grpc::ClientContext context;
      v1::JoinResponse joined;
      Require(FromGrpc(stub_->Join(&context, ToProto(join), &joined)));
      incarnations.push_back(joined.incarnation());
    }
    grpc::ClientContext context;
    v1::JobStatus status;
    Require(FromGrpc(stub_->GetStatus(&context, v1::GetStatusRequest(), &status)));
    const Generation generation = status.groups(0).generation();
    for (Rank rank = 0; rank < kWorldSize; ++rank) {
      const JoinRequest join = TestJoin(rank, kWorldSize);
      AddMemberSeeds({join.job, join.optimizer, rank, incarnations[rank]}, generation, seeds);
      JoinRequest again = join;
      again.request_id += "-again";
      Add("Join", ToProto(again), seeds);
      Add("Join", ToProto(WithoutSpec(again)), seeds);
      again.resumes = KeptState{generation, {3, StepOutcome::kIdle}};
      Add("Join", ToProto(again), seeds);
    }
    Add("GetStatus", v1::GetStatusRequest(), seeds);
    v1::GetOwnersRequest owners;
    owners.set_optimizer(TestJoin(0, kWorldSize).optimizer);
    owners.set_first_rank(1);
    Add("GetOwners", owners, seeds);
    AddInspectionSeeds(seeds);
    AddCheckpointSeeds(seeds);
    v1::GetPlanRequest plan;
    plan.set_optimizer(TestJoin(0, kWorldSize).optimizer);
    Add("GetPlan", plan, seeds);
    return seeds;
  }

  std::string Send(const FuzzRequest& request) override {
    const std::string& method = request.method;
    grpc::ClientContext context;
    if (method == "Join") return Call<v1::JoinResponse>(&v1::Coordinator::Stub::Join, request);
    if (method == "Heartbeat") {
      return Call<v1::HeartbeatResponse>(&v1::Coordinator::Stub::Heartbeat, request);
    }
    if (method == "ReportFailure") {
      return Call<v1::ReportFailureResponse>(&v1::Coordinator::Stub::ReportFailure, request);
    }
    if (method == "Leave") return Call<v1::LeaveResponse>(&v1::Coordinator::Stub::Leave, request);
    if (method == "PutRendezvous") {
      return Call<v1::PutRendezvousResponse>(&v1::Coordinator::Stub::PutRendezvous, request);
    }
    if (method == "GetRendezvous") {
      return Call<v1::GetRendezvousResponse>(&v1::Coordinator::Stub::GetRendezvous, request, true);
    }
    if (method == "GetOwners") {
      return Call<v1::GetOwnersResponse>(&v1::Coordinator::Stub::GetOwners, request);
    }
    if (method == "GetPlan") {
      return Call<v1::GetPlanResponse>(&v1::Coordinator::Stub::GetPlan, request);
    }
    if (method == "ProposeGrowth") {
      return Call<v1::ProposeGrowthResponse>(&v1::Coordinator::Stub::ProposeGrowth, request, true);
    }
    if (method == "GetStatus") {
      return Call<v1::JobStatus>(&v1::Coordinator::Stub::GetStatus, request);
    }
    if (method == "Watch") return Watch(static_cast<const v1::WatchRequest&>(*request.message));
    if (method == "SaveCheckpoint") {
      return Save(static_cast<const v1::SaveCheckpointRequest&>(*request.message));
    }
    if (method == "ExportModel") {
      return Export(static_cast<const v1::ExportModelRequest&>(*request.message));
    }
    if (method == "ListCheckpoints") return ListCheckpoints(request);
    return Inspect(request);
  }

 private:
  template <typename Message>
  static void Add(const std::string& method, const Message& message,
                  std::vector<FuzzRequest>& seeds) {
    seeds.push_back({method, std::make_shared<Message>(message)});
  }

  static void AddMemberSeeds(const MemberId& member, Generation generation,
                             std::vector<FuzzRequest>& seeds) {
    const v1::CallHeader header =
        MakeHeader(member, generation, absl::StrCat("call-", member.rank));
    const StepProgress progress = {5, StepOutcome::kInStep, 1};
    const auto with_header = [&header](auto message) {
      *message.mutable_header() = header;
      return message;
    };
    v1::WatchRequest watch = with_header(v1::WatchRequest());
    watch.set_after_sequence(1);
    Add("Watch", watch, seeds);
    v1::HeartbeatRequest heartbeat = with_header(v1::HeartbeatRequest());
    *heartbeat.mutable_progress() = ToProto(progress);
    Add("Heartbeat", heartbeat, seeds);
    v1::ReportFailureRequest report = with_header(v1::ReportFailureRequest());
    *report.mutable_progress() = ToProto(progress);
    report.set_suspect_rank(1 - member.rank);
    *report.mutable_observed() = ToProto(absl::UnavailableError("the connection broke"));
    Add("ReportFailure", report, seeds);
    v1::LeaveRequest leave = with_header(v1::LeaveRequest());
    *leave.mutable_progress() = ToProto(progress);
    Add("Leave", leave, seeds);
    v1::PutRendezvousRequest put = with_header(v1::PutRendezvousRequest());
    put.set_key("key");
    put.set_value("value");
    Add("PutRendezvous", put, seeds);
    v1::GetRendezvousRequest get = with_header(v1::GetRendezvousRequest());
    get.set_key("key");
    get.set_wait_ms(1);
    Add("GetRendezvous", get, seeds);
    GrowthProposal growth;
    growth.number = 1;
    growth.spec = Grown(TestJoin(member.rank, kWorldSize).spec);
    growth.patience = absl::Milliseconds(1);
    v1::ProposeGrowthRequest propose = with_header(ToProto(growth));
    propose.set_wait_ms(1);
    Add("ProposeGrowth", propose, seeds);
    propose.set_phase(v1::GROWTH_PHASE_COMMIT);
    Add("ProposeGrowth", propose, seeds);
    propose.clear_spec();
    propose.set_spec_digest(GrowthDigest(growth.spec));
    Add("ProposeGrowth", propose, seeds);
  }

  // Nobody serves the owners' addresses, so that these calls do not find them.
  static void AddInspectionSeeds(std::vector<FuzzRequest>& seeds) {
    v1::DescribeJobRequest describe;
    describe.set_page_size(1);
    describe.set_page_token("1");
    Add("DescribeJob", describe, seeds);
    v1::ListJobParametersRequest list;
    list.set_name("fc.*");
    list.set_page_token("1");
    Add("ListJobParameters", list, seeds);
    v1::GetStatisticsRequest statistics;
    statistics.set_slot("exp_avg*");
    statistics.set_name("*");
    Add("GetStatistics", statistics, seeds);
    Add("ListGroups", v1::ListGroupsRequest(), seeds);
    v1::ReadValuesRequest values;
    values.set_name("fc.weight");
    values.set_slot("exp_avg");
    values.set_offset_elements(1);
    values.set_elements(2);
    Add("ReadValues", values, seeds);
    v1::ListStepsRequest steps;
    steps.add_ranks(1);
    steps.set_steps(3);
    Add("ListSteps", steps, seeds);
  }

  // Nobody serves the owners' addresses, so that no save gets as far as a file.
  static void AddCheckpointSeeds(std::vector<FuzzRequest>& seeds) {
    v1::SaveCheckpointRequest save;
    save.set_optimizer(TestJoin(0, kWorldSize).optimizer);
    save.set_directory("/proc/checkpoints");
    save.add_labels("best");
    save.set_request_id("fuzz");
    save.set_step(3);
    save.set_rank(1);
    Add("SaveCheckpoint", save, seeds);
    v1::ExportModelRequest model;
    model.set_optimizer(TestJoin(0, kWorldSize).optimizer);
    model.set_directory("/proc/model");
    model.set_shard_bytes(1000);
    model.set_request_id("fuzz model");
    model.set_step(3);
    model.set_rank(1);
    Add("ExportModel", model, seeds);
    v1::ListCheckpointsRequest list;
    list.set_directory("/proc");
    list.set_page_size(1);
    list.set_page_token("1");
    Add("ListCheckpoints", list, seeds);
  }

  std::string Save(const v1::SaveCheckpointRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kShortWait));
    return Follow(*checkpoints_->SaveCheckpoint(&context, request));
  }

  std::string Export(const v1::ExportModelRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kShortWait));
    return Follow(*checkpoints_->ExportModel(&context, request));
  }

  std::string Follow(grpc::ClientReader<v1::SaveCheckpointUpdate>& stream) {
    v1::SaveCheckpointUpdate update;
    while (stream.Read(&update)) {
      if (update.committed()) return "a checkpoint or a model is committed";
    }
    return CheckStatus(stream.Finish(), true);
  }

  std::string ListCheckpoints(const FuzzRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kPatience));
    v1::ListCheckpointsResponse response;
    const grpc::Status status = checkpoints_->ListCheckpoints(
        &context, static_cast<const v1::ListCheckpointsRequest&>(*request.message), &response);
    if (status.ok() && response.ByteSizeLong() >= (size_t{4} << 20)) return "a large answer";
    return CheckStatus(status);
  }

  std::string Inspect(const FuzzRequest& request) {
    using Stub = v1::JobInspection::Stub;
    const std::string& method = request.method;
    if (method == "DescribeJob") return Look<v1::JobDescription>(&Stub::DescribeJob, request);
    if (method == "ListJobParameters") {
      return Look<v1::ListJobParametersResponse>(&Stub::ListParameters, request);
    }
    if (method == "GetStatistics") {
      return Look<v1::GetStatisticsResponse>(&Stub::GetStatistics, request);
    }
    if (method == "ListGroups") return Look<v1::ListGroupsResponse>(&Stub::ListGroups, request);
    if (method == "ReadValues") return Look<v1::ReadValuesResponse>(&Stub::ReadValues, request);
    return Look<v1::ListStepsResponse>(&Stub::ListSteps, request);
  }

  template <typename Response, typename Request>
  std::string Look(grpc::Status (v1::JobInspection::Stub::*method)(grpc::ClientContext*,
                                                                   const Request&, Response*),
                   const FuzzRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kPatience));
    Response response;
    const grpc::Status status = (inspection_.get()->*method)(
        &context, static_cast<const Request&>(*request.message), &response);
    if (status.ok() && response.ByteSizeLong() >= (size_t{4} << 20)) return "a large answer";
    return CheckStatus(status);
  }

  static OptimizerSpec Grown(OptimizerSpec spec) {
    std::vector<GroupSpec> groups = spec.space.groups();
    GroupSpec added = groups.front();
    added.admission = 1;
    for (ParameterSpec& parameter : added.parameters) parameter.name += ".added";
    groups.push_back(std::move(added));
    spec.space = ParameterSpace(std::move(groups));
    spec.rules.push_back(spec.rules.front());
    return spec;
  }

  template <typename Response, typename Request>
  std::string Call(grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*,
                                                                 const Request&, Response*),
                   const FuzzRequest& request, bool may_wait = false) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(may_wait ? kShortWait : kPatience));
    Response response;
    return CheckStatus(
        (stub_.get()->*method)(&context, static_cast<const Request&>(*request.message), &response),
        may_wait);
  }

  std::string Watch(const v1::WatchRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(kShortWait));
    const auto stream = stub_->Watch(&context, request);
    v1::WatchEvent event;
    while (stream->Read(&event)) {
      if (event.event_case() == v1::WatchEvent::kStreamOpened) continue;  // has no number
      if (event.sequence() <= request.after_sequence()) return "an event that was not asked for";
    }
    return CheckStatus(stream->Finish(), true);
  }

  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  std::unique_ptr<v1::JobInspection::Stub> inspection_;
  std::unique_ptr<v1::Checkpoints::Stub> checkpoints_;
};

}  // namespace

std::unique_ptr<FuzzTarget> MakeCoordinatorTarget() {
  return std::make_unique<CoordinatorTarget>();
}

}  // namespace optshard::testing

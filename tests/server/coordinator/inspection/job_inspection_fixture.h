// A job of two ranks whose JobInspection service is asked over loopback, with shard owners that are
// not behind it but their views.
#ifndef OPTSHARD_TESTS_SERVER_COORDINATOR_INSPECTION_JOB_INSPECTION_FIXTURE_H_
#define OPTSHARD_TESTS_SERVER_COORDINATOR_INSPECTION_JOB_INSPECTION_FIXTURE_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/channel_rpc.h"
#include "gtest/gtest.h"
#include "proto/optshard/v1/inspection.grpc.pb.h"
#include "server/coordinator/coordinator_server.h"
#include "server/shard/inspection/shard_owner_server.h"
#include "tests/server/coordinator/join_requests.h"
#include "tests/server/shard/inspection/fake_shard_view.h"

namespace optshard::testing {

constexpr char kInspectedOptimizer[] = "default";

// Two ranks of "optshard", whose plan is of `space`.
class JobInspectionTest : public ::testing::Test {
 protected:
  JobInspectionTest() {
    CoordinatorServer::Options options;
    options.coordinator.group.world_size = 2;
    options.coordinator.group.liveness.lease = absl::Hours(1);
    options.coordinator.group.liveness.session_grace = absl::Hours(1);
    coordinator_ = CoordinatorServer::Start(options).value();
    owners_ = ShardOwnerServer::Start(ShardOwnerServer::Options(), &views_).value();
    stub_ = v1::JobInspection::NewStub(MakeChannel(coordinator_->address()));
  }

  // In reverse: the server stops before the views go.
  ~JobInspectionTest() override { owners_->Stop(absl::Seconds(1)); }

  absl::Status Join(Rank rank, const OptimizerSpec& spec, const std::string& address) {
    JoinRequest join = TestJoin(rank, 2);
    join.spec.space = spec.space;
    join.spec.policy = spec.policy;
    join.spec.rules = spec.rules;
    join.owner_address = address;
    return coordinator_->coordinator().Join(join).status();
  }

  void Start(const OptimizerSpec& spec) {
    for (Rank rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(Join(rank, spec, OwnerAddress()).ok());
    }
    const OptimizerPlan plan = coordinator_->coordinator().GetPlan(kInspectedOptimizer).value();
    for (Rank rank = 0; rank < 2; ++rank) {
      auto view = std::make_unique<FakeShardView>();
      const JobStatus status = coordinator_->coordinator().GetStatus(kInspectedOptimizer);
      view->description.member = {"optshard", kInspectedOptimizer, rank,
                                  status.groups.at(0).members.at(rank).incarnation};
      view->description.world_size = 2;
      view->description.generation = plan.ready->plan.generation;
      view->description.groups = plan.spec.rules;
      view->description.progress = {12, StepOutcome::kIdle};
      view->description.state_bytes = int64_t{1024} * (rank + 1);
      for (const Slice& slice : plan.ready->plan.partition.slices[rank]) {
        OwnedSlice owned;
        owned.parameter = slice.parameter;
        owned.name = plan.spec.space.parameter(slice.parameter).name;
        owned.shape = plan.spec.space.parameter(slice.parameter).shape;
        owned.offset_elements = slice.offset_elements;
        owned.elements = slice.elements;
        owned.step = 12;
        owned.slots = {"exp_avg", "exp_avg_sq", "step"};
        owned.slot_shapes = {{"step", {}}};
        view->slices.push_back(std::move(owned));
      }
      ASSERT_TRUE(views_.Register(kInspectedOptimizer, rank, view.get()).ok());
      views_of_.push_back(std::move(view));
    }
  }

  static OptimizerSpec Spec(ParameterSpace space,
                            PartitionPolicy policy = PartitionPolicy::kGreedy) {
    OptimizerSpec spec;
    spec.space = std::move(space);
    spec.policy = policy;
    spec.rules = {{"adam"}};
    return spec;
  }

  // One parameter of which each rank owns a half.
  static OptimizerSpec Halves() {
    ParameterSpec parameter;
    parameter.name = "weight";
    parameter.shape = {4096};
    return Spec(ParameterSpace({GroupSpec{{parameter}}}), PartitionPolicy::kBalanced);
  }

  std::string OwnerAddress() const { return absl::StrCat("127.0.0.1:", owners_->port()); }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::JobInspection::Stub::*method)(
                                    grpc::ClientContext*, const Request&, Response*),
                                const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(absl::Seconds(20)));
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (!status.ok()) {
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          status.error_message());
    }
    EXPECT_LT(response.ByteSizeLong(), 2u << 20);
    return response;
  }

  absl::StatusOr<v1::JobDescription> Describe(const v1::DescribeJobRequest& request = {}) {
    return Call(&v1::JobInspection::Stub::DescribeJob, request);
  }
  absl::StatusOr<v1::ListJobParametersResponse> List(const v1::ListJobParametersRequest& request) {
    return Call(&v1::JobInspection::Stub::ListParameters, request);
  }
  absl::StatusOr<v1::GetStatisticsResponse> Statistics(const v1::GetStatisticsRequest& request) {
    return Call(&v1::JobInspection::Stub::GetStatistics, request);
  }
  absl::StatusOr<v1::ReadValuesResponse> Read(const std::string& slot, int64_t offset,
                                              int64_t elements) {
    v1::ReadValuesRequest request;
    request.set_name("weight");
    request.set_slot(slot);
    request.set_offset_elements(offset);
    request.set_elements(elements);
    return Call(&v1::JobInspection::Stub::ReadValues, request);
  }

  ShardViewRegistry views_;
  std::vector<std::unique_ptr<FakeShardView>> views_of_;
  std::unique_ptr<CoordinatorServer> coordinator_;
  std::unique_ptr<ShardOwnerServer> owners_;
  std::unique_ptr<v1::JobInspection::Stub> stub_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_COORDINATOR_INSPECTION_JOB_INSPECTION_FIXTURE_H_

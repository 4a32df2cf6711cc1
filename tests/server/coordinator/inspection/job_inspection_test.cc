// The JobInspection service over loopback, with shard owners that are not behind it but their
// views.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/rpc/channel_rpc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/optshard/v1/inspection.grpc.pb.h"
#include "server/coordinator/coordinator_server.h"
#include "server/shard/inspection/shard_owner_server.h"
#include "tests/server/coordinator/join_requests.h"
#include "tests/server/shard/inspection/fake_shard_view.h"

namespace optshard::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kOptimizer[] = "default";

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
    const OptimizerPlan plan = coordinator_->coordinator().GetPlan(kOptimizer).value();
    for (Rank rank = 0; rank < 2; ++rank) {
      auto view = std::make_unique<FakeShardView>();
      const JobStatus status = coordinator_->coordinator().GetStatus(kOptimizer);
      view->description.member = {"optshard", kOptimizer, rank,
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
      ASSERT_TRUE(views_.Register(kOptimizer, rank, view.get()).ok());
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

TEST_F(JobInspectionTest, NobodyHasJoined_SaysSo) {
  const auto description = Describe();
  EXPECT_EQ(description.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(description.status().message(), "job \"optshard\": nobody has joined yet");
}

TEST_F(JobInspectionTest, RanksAreMissing_AreNamed) {
  ASSERT_TRUE(Join(0, Halves(), OwnerAddress()).ok());
  const auto description = Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_THAT(description->summary(), HasSubstr("default forming: 1 of 2 ranks joined, waiting for "
                                                "rank 1"));
  EXPECT_EQ(description->state(), "forming");
  ASSERT_EQ(description->ranks_size(), 2);
  EXPECT_EQ(description->ranks(0).state(), "joined");
  EXPECT_EQ(description->ranks(0).owner_address(), OwnerAddress());
  EXPECT_THAT(description->ranks(0).summary(), HasSubstr("owner at " + OwnerAddress()));
  EXPECT_EQ(description->ranks(1).state(), "missing");
  EXPECT_THAT(description->ranks(1).summary(), HasSubstr("rank 1 missing"));
  EXPECT_EQ(List({}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(JobInspectionTest, TornRankOfAnActiveJob_IsSaid) {
  Start(Halves());
  EXPECT_FALSE(Describe()->torn());
  views_of_[1]->description.progress = {0, StepOutcome::kTorn};
  const auto description = Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_EQ(description->state(), "active");
  EXPECT_TRUE(description->torn());
  EXPECT_THAT(description->summary(),
              HasSubstr("; torn: of rank 1 the state is that of no step, and each step is refused "
                        "until all ranks load a checkpoint"));
  EXPECT_FALSE(description->ranks(0).torn());
  EXPECT_TRUE(description->ranks(1).torn());
  EXPECT_THAT(description->ranks(1).summary(), HasSubstr("torn: its state is that of no step"));
}

TEST_F(JobInspectionTest, OwnerOfAnotherJobAtTheAddress_IsNotBelieved) {
  Start(Halves());
  views_of_[1]->description.member.job = "another";
  const auto description = Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  ASSERT_EQ(description->unanswered_size(), 1);
  EXPECT_THAT(description->unanswered(0).summary(),
              HasSubstr("rank 1 of job \"another\" is served here, not of \"optshard\""));
  EXPECT_EQ(Statistics({})->unanswered_size(), 1);
  EXPECT_EQ(Call(&v1::JobInspection::Stub::ListSteps, v1::ListStepsRequest())->unanswered_size(),
            1);
  EXPECT_EQ(Read("exp_avg", 4000, 5).status().code(), absl::StatusCode::kNotFound);
  views_of_[1]->description.member = {"optshard", kOptimizer, 1, 1};  // of an earlier life
  EXPECT_THAT(Describe()->unanswered(0).summary(), HasSubstr("ABORTED"));
}

TEST_F(JobInspectionTest, FirstOwnerThatDoesNotAnswer_TheNextOneTells) {
  Start(Halves());
  views_.Unregister(kOptimizer, 0);
  const auto list = List({});
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->parameters(0).slots(), ElementsAre("exp_avg", "exp_avg_sq", "step"));
  EXPECT_EQ(list->parameters(0).step(), 12);
  EXPECT_EQ(list->unanswered_size(), 1);
  const auto values = Read("exp_avg", 4000, 2);
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(values->values(), ElementsAre(4000, 4001));
  EXPECT_EQ(Read("step", 0, 0)->values_size(), 1);
}

TEST_F(JobInspectionTest, ReplicatedState_AnyRankTells) {
  ParameterSpec parameter;
  parameter.name = "weight";
  parameter.shape = {4096};
  Start(Spec(ParameterSpace({GroupSpec{{parameter}}}), PartitionPolicy::kReplicated));
  views_.Unregister(kOptimizer, 0);
  EXPECT_THAT(List({})->parameters(0).slots(), ElementsAre("exp_avg", "exp_avg_sq", "step"));
  const auto statistics = Statistics({});
  ASSERT_TRUE(statistics.ok()) << statistics.status();
  EXPECT_EQ(statistics->parameters(0).slots_size(), 3);
  EXPECT_THAT(Read("exp_avg", 4000, 2)->values(), ElementsAre(4000, 4001));
}

TEST_F(JobInspectionTest, TimeForStatisticsIsOver_SaysWhatIsMissingAndHowToGoOn) {
  std::vector<ParameterSpec> parameters(3);
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].name = absl::StrCat("p", i);
    parameters[i].shape = {10};
  }
  Start(Spec(ParameterSpace({GroupSpec{std::move(parameters)}})));  // rank 0 owns 0 and 2
  absl::Notification go_on;
  std::atomic<int> pieces{0};
  views_of_[0]->read = [&](int64_t, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    if (++pieces > 4) go_on.WaitForNotification();
    return StepNumber{1};
  };
  const auto ask = [this](const std::string& token) {
    v1::GetStatisticsRequest request;
    request.set_page_token(token);
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(absl::Seconds(1)));
    v1::GetStatisticsResponse response;
    const grpc::Status status = stub_->GetStatistics(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  };
  const v1::GetStatisticsResponse first = ask("");
  EXPECT_EQ(first.summary(),
            "slots of 2 parameters, there are more; the time was over: go on with the next page");
  EXPECT_EQ(first.parameters_size(), 2);
  EXPECT_EQ(first.next_page_token(), "2");
  const v1::GetStatisticsResponse last = ask("2");
  ASSERT_EQ(last.parameters_size(), 1);
  EXPECT_EQ(last.summary(),
            "slots of 1 parameters, the last ones; the time was over before all of parameter 2 was "
            "gone through: ask for one of its slots at a time");
  EXPECT_THAT(last.parameters(0).not_scanned(), ElementsAre("exp_avg", "exp_avg_sq", "step"));
  EXPECT_THAT(last.parameters(0).summary(), HasSubstr("not all values were gone through of: "));
  go_on.Notify();
  EXPECT_EQ(ask("2").parameters(0).not_scanned_size(), 0);
}

TEST_F(JobInspectionTest, OtherOptimizers_AreListed) {
  Start(Halves());
  v1::DescribeJobRequest request;
  request.set_optimizer("critic");
  EXPECT_EQ(Describe(request).status().message(),
            "job \"optshard\" has no optimizer of that name; it has: \"default\"");
  ASSERT_TRUE(coordinator_->coordinator().Join(TestJoin(0, 2, "critic")).ok());
  EXPECT_TRUE(Describe(request).ok());
  const absl::Status several = Describe().status();
  EXPECT_EQ(several.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(several.message()), HasSubstr("it has: \"critic\", \"default\""));
}

TEST_F(JobInspectionTest, RankInItsStep_WaitsForTheOther) {
  Start(Halves());
  views_of_[1]->description.progress = {12, StepOutcome::kInStep};
  views_of_[1]->description.activity = {RankPhase::kCommit, absl::Milliseconds(1300)};
  views_of_[0]->description.activity = {RankPhase::kIdle, absl::Milliseconds(1400)};
  const auto description = Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  ASSERT_EQ(description->ranks_size(), 2);
  EXPECT_EQ(description->ranks(0).summary(),
            "rank 0 active: finished step 12, idle for 1.4 s (its trainer computes); owns 1 of 1 "
            "parameters, 8.0 KiB, 1.0 KiB of state");
  EXPECT_EQ(description->ranks(1).summary(),
            "rank 1 active: in step 13, voted 1.3 s ago, waits for rank 0; owns 1 of 1 "
            "parameters, 8.0 KiB, 2.0 KiB of state");
  EXPECT_THAT(description->ranks(1).waits_for(), ElementsAre(0));
  EXPECT_EQ(description->ranks(1).waits_for_count(), 1);
  EXPECT_EQ(description->ranks(1).phase(), v1::RANK_PHASE_COMMIT);
  EXPECT_EQ(description->unanswered_size(), 0);
}

TEST_F(JobInspectionTest, BytesOfTheRanks_AreCompared) {
  Start(Halves());
  const auto description = Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_EQ(description->parameters().summary(),
            "parameters a rank: 8.0 KiB (rank 0) to 8.0 KiB (rank 0), the largest 1.000 of the "
            "mean");
  EXPECT_EQ(description->slots().min_bytes(), 1024);
  EXPECT_EQ(description->slots().max_bytes(), 2048);
  EXPECT_EQ(description->slots().max_rank(), 1);
  EXPECT_DOUBLE_EQ(description->slots().max_over_mean(), 4.0 / 3);
}

TEST_F(JobInspectionTest, Ranks_ComeInPages) {
  Start(Halves());
  v1::DescribeJobRequest request;
  request.set_page_size(1);
  auto description = Describe(request);
  ASSERT_TRUE(description.ok()) << description.status();
  ASSERT_EQ(description->ranks_size(), 1);
  EXPECT_EQ(description->next_page_token(), "1");
  request.set_page_token(description->next_page_token());
  description = Describe(request);
  ASSERT_EQ(description->ranks_size(), 1);
  EXPECT_EQ(description->ranks(0).rank(), 1);
  EXPECT_EQ(description->next_page_token(), "");
  request.set_page_token("2");
  EXPECT_EQ(Describe(request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(JobInspectionTest, OwnerThatDoesNotAnswer_IsNamedAndTheRestSaid) {
  Start(Halves());
  views_.Unregister(kOptimizer, 1);
  const auto description = Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  ASSERT_EQ(description->unanswered_size(), 1);
  EXPECT_EQ(description->unanswered(0).rank(), 1);
  EXPECT_THAT(description->unanswered(0).summary(),
              AllOf(HasSubstr("rank 1 at " + OwnerAddress()), HasSubstr("UNAVAILABLE")));
  ASSERT_EQ(description->ranks_size(), 2);
  EXPECT_THAT(description->ranks(0).summary(), HasSubstr("idle"));
  EXPECT_THAT(description->ranks(1).summary(), HasSubstr("when last heard from"));

  const auto statistics = Statistics({});
  ASSERT_TRUE(statistics.ok()) << statistics.status();
  EXPECT_EQ(statistics->unanswered_size(), 1);
  EXPECT_THAT(statistics->summary(), HasSubstr("1 owner has not answered"));
  EXPECT_THAT(statistics->parameters(0).summary(), HasSubstr("only 2048 of 4096 elements"));
  EXPECT_EQ(Read("exp_avg", 4000, 5).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(JobInspectionTest, OwnerWithoutAnAddress_IsNamed) {
  ASSERT_TRUE(Join(0, Halves(), "").ok());
  ASSERT_TRUE(Join(1, Halves(), "127.0.0.1:1").ok());
  const auto list = List({});
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->unanswered_size(), 2);  // nor does the other owner
  EXPECT_THAT(list->unanswered(0).summary(), HasSubstr("rank 0 at no address"));
  EXPECT_THAT(list->parameters(0).summary(), HasSubstr("its owner has not answered"));
}

TEST_F(JobInspectionTest, OwnerOfAnotherGeneration_CountsAsUnanswered) {
  Start(Halves());
  views_of_[0]->description.generation = 7;
  const auto list = List({});
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->unanswered_size(), 1);
  EXPECT_THAT(list->unanswered(0).summary(), HasSubstr("it is of generation 7, expected 1"));
}

TEST_F(JobInspectionTest, Parameters_HaveTheirOwners) {
  Start(Halves());
  const auto list = List({});
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->summary(),
            "optimizer default has 1 parameters, 4096 elements; this page has 1, the last ones");
  ASSERT_EQ(list->parameters_size(), 1);
  const v1::JobParameter& parameter = list->parameters(0);
  EXPECT_EQ(parameter.summary(),
            "0 weight float32 [4096] step 12, 16.0 KiB, ranks 0, 1: exp_avg, exp_avg_sq, step");
  EXPECT_EQ(parameter.step(), 12);
  EXPECT_THAT(parameter.slots(), ElementsAre("exp_avg", "exp_avg_sq", "step"));
  ASSERT_EQ(parameter.owners_size(), 2);
  EXPECT_EQ(parameter.owners(1).rank(), 1);
  EXPECT_EQ(parameter.owners(1).offset_elements(), 2048);
  EXPECT_EQ(parameter.owners(1).elements(), 2048);
}

TEST_F(JobInspectionTest, HundredThousandParameters_ComeInSmallPages) {
  std::vector<ParameterSpec> parameters(100'000);
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].name =
        absl::StrFormat("decoder.layers.%d.attention.%s", i / 2, i % 2 == 0 ? "weight" : "bias");
    parameters[i].shape = {1};
  }
  Start(Spec(ParameterSpace({GroupSpec{std::move(parameters)}})));
  v1::ListJobParametersRequest request;
  request.set_page_size(500);
  request.set_name("*.bias");
  auto list = List(request);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->parameters_size(), 500);
  EXPECT_EQ(list->parameters(499).parameter(), 999);
  EXPECT_EQ(list->parameters(499).step(), 12);
  EXPECT_EQ(list->unanswered_size(), 0);
  request.set_page_token("99998");
  list = List(request);
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->parameters_size(), 1);
  EXPECT_EQ(list->parameters(0).name(), "decoder.layers.49999.attention.bias");
  EXPECT_EQ(list->next_page_token(), "");
  v1::GetStatisticsRequest statistics;
  statistics.set_page_size(100);
  const auto page = Statistics(statistics);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->parameters_size(), 100);
  EXPECT_EQ(page->next_page_token(), "100");
}

TEST_F(JobInspectionTest, Statistics_AreOfAllOwners) {
  Start(Halves());
  v1::GetStatisticsRequest request;
  request.set_slot("exp_avg");
  const auto statistics = Statistics(request);
  ASSERT_TRUE(statistics.ok()) << statistics.status();
  ASSERT_EQ(statistics->parameters_size(), 1);
  EXPECT_EQ(statistics->parameters(0).summary(), "0 weight float32 [4096], updated 12 times");
  ASSERT_EQ(statistics->parameters(0).slots_size(), 1);
  const v1::SlotStatistics& slot = statistics->parameters(0).slots(0);
  double squares = 0;
  for (int i = 0; i < 4096; ++i) squares += static_cast<double>(i) * i;
  EXPECT_DOUBLE_EQ(slot.norm() * slot.norm(), squares);
  EXPECT_EQ(slot.mean(), 4095.0 / 2);
  EXPECT_EQ(slot.min(), 0);
  EXPECT_EQ(slot.max(), 4095);
  EXPECT_EQ(slot.elements(), 4096);
  EXPECT_EQ(slot.zero_share(), 1.0 / 4096);
  EXPECT_EQ(slot.non_finite_share(), 0);
  EXPECT_EQ(slot.first_step(), 1);
  EXPECT_EQ(slot.summary(),
            "exp_avg float32: norm 151321, mean 2047.5, min 0, max 4095, 0.02441 % zeros, all "
            "finite; step 1");
}

TEST_F(JobInspectionTest, SlotsOfOneNumber_CountOnce) {
  Start(Halves());
  for (Rank rank = 0; rank < 2; ++rank) {
    views_of_[rank]->read = [rank](int64_t, absl::Span<double> out) -> absl::StatusOr<StepNumber> {
      for (double& value : out) value = 12;
      return static_cast<StepNumber>(5 + rank);
    };
  }
  v1::GetStatisticsRequest request;
  request.set_slot("step");
  const auto statistics = Statistics(request);
  ASSERT_TRUE(statistics.ok()) << statistics.status();
  const v1::SlotStatistics& slot = statistics->parameters(0).slots(0);
  EXPECT_EQ(slot.elements(), 1);
  EXPECT_EQ(slot.max(), 12);
  request.set_slot("exp_avg");
  EXPECT_THAT(Statistics(request)->parameters(0).slots(0).summary(), HasSubstr("of steps 5 to 6"));
}

TEST_F(JobInspectionTest, Values_ComeFromBothOwners) {
  Start(Halves());
  const auto values = Read("exp_avg", 2046, 4);
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(values->values(), ElementsAre(2046, 2047, 2048, 2049));
  EXPECT_EQ(values->summary(), "exp_avg of weight, float32, elements [2046, 2050), step 1");
  EXPECT_EQ(Read("exp_avg", 4090, 0)->values_size(), 6);
  EXPECT_EQ(Read("exp_avg", 0, 0)->values_size(), 10);
  EXPECT_EQ(Read("step", 0, 0)->values_size(), 1);
}

TEST_F(JobInspectionTest, ValuesThatAreNot_AreRefused) {
  Start(Halves());
  EXPECT_EQ(Read("momentum", 0, 1).status().message(),
            "parameter 0 has no slot \"momentum\"; it has: exp_avg, exp_avg_sq, step");
  EXPECT_EQ(Read("exp_avg", 4090, 7).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Read("exp_avg", 4096, 0).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Read("step", 1, 1).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Read("exp_avg", 0, (64 << 10) + 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read("exp_avg", -1, 1).status().code(), absl::StatusCode::kInvalidArgument);
  v1::ReadValuesRequest request;
  request.set_slot("exp_avg");
  request.set_parameter(1);
  EXPECT_EQ(Call(&v1::JobInspection::Stub::ReadValues, request).status().message(),
            "no parameter 1: the optimizer has 0 to 0");
}

TEST_F(JobInspectionTest, OwnersThatAreAStepApart_AreAborted) {
  Start(Halves());
  views_of_[1]->read = [](int64_t, absl::Span<double>) { return StepNumber{2}; };
  const absl::Status status = Read("exp_avg", 2046, 4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the values of rank 1 are of step 2, those of the ranks before it of step "
                        "1"));
}

TEST_F(JobInspectionTest, TornState_IsSaidByWhom) {
  Start(Halves());
  views_of_[1]->read = [](int64_t, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    return absl::DataLossError("torn");
  };
  const absl::Status status = Read("exp_avg", 3000, 4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 at " + OwnerAddress()));
}

TEST_F(JobInspectionTest, Groups_HaveTheHyperparametersOfTheLastStep) {
  Start(Halves());
  views_of_[0]->description.groups[0].hyperparameters.Set("lr", 0.25);
  const auto groups = Call(&v1::JobInspection::Stub::ListGroups, v1::ListGroupsRequest());
  ASSERT_TRUE(groups.ok()) << groups.status();
  ASSERT_EQ(groups->groups_size(), 1);
  EXPECT_EQ(groups->groups(0).summary(), "group 0: adam, 1 parameters, 4096 elements");
  EXPECT_EQ(groups->groups(0).hyperparameters(), "lr=0.25");
  EXPECT_THAT(groups->summary(), HasSubstr("those of rank 0 at step 12"));
  views_.Unregister(kOptimizer, 0);
  EXPECT_THAT(Call(&v1::JobInspection::Stub::ListGroups, v1::ListGroupsRequest())->summary(),
              HasSubstr("those of rank 1"));
  views_.Unregister(kOptimizer, 1);
  EXPECT_EQ(Call(&v1::JobInspection::Stub::ListGroups, v1::ListGroupsRequest()).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(JobInspectionTest, Steps_AreATable) {
  Start(Halves());
  for (Rank rank = 0; rank < 2; ++rank) {
    for (const StepNumber step : {11, 12}) {
      for (const char* phase : {"prepare", "commit", "apply"}) {
        TimelineSpan span;
        span.step = step;
        span.phase = phase;
        span.duration_us = 1000 * static_cast<int64_t>(step) + rank;
        views_of_[rank]->timeline.push_back(span);
      }
    }
  }
  v1::ListStepsRequest request;
  auto steps = Call(&v1::JobInspection::Stub::ListSteps, request);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_THAT(
      steps->table(),
      ElementsAre(
          "    step  rank   prepare    commit     apply    in all    reduce    update   publish  "
          "buckets",
          "      11     0    11.000    11.000    11.000    33.000     0.000     0.000     0.000  "
          "      0",
          "      11     1    11.001    11.001    11.001    33.003     0.000     0.000     0.000  "
          "      0",
          "      12     0    12.000    12.000    12.000    36.000     0.000     0.000     0.000  "
          "      0",
          "      12     1    12.001    12.001    12.001    36.003     0.000     0.000     0.000  "
          "      0"));
  request.add_ranks(1);
  request.set_steps(1);
  steps = Call(&v1::JobInspection::Stub::ListSteps, request);
  EXPECT_EQ(steps->table_size(), 2);
  EXPECT_EQ(steps->summary(), "the last steps of 1 of 2 ranks, in milliseconds");
  request.add_ranks(2);
  EXPECT_EQ(Call(&v1::JobInspection::Stub::ListSteps, request).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(JobInspectionTest, FiveCallsAtOnce_AreOneTooMany) {
  Start(Halves());
  absl::Notification go;
  absl::Mutex mutex;
  int waiting = 0;
  views_of_[0]->read = [&](int64_t, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    absl::MutexLock lock(&mutex);
    ++waiting;
    mutex.Await(absl::Condition(&go, &absl::Notification::HasBeenNotified));
    return StepNumber{1};
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([this] { EXPECT_TRUE(Read("exp_avg", 0, 1).ok()); });
  }
  {
    absl::MutexLock lock(&mutex);
    const auto all_wait = [&waiting] { return waiting == 4; };
    mutex.Await(absl::Condition(&all_wait));
  }
  const absl::Status refused = Describe().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  go.Notify();
  {
    absl::MutexLock lock(&mutex);  // wakes those that wait
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(Describe().ok());
}

}  // namespace
}  // namespace optshard::testing

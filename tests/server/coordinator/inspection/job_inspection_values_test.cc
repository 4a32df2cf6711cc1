// What the JobInspection service says of parameters and of their slots' values.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/coordinator/inspection/job_inspection_fixture.h"

namespace optshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(JobInspectionTest, ReplicatedState_AnyRankTells) {
  ParameterSpec parameter;
  parameter.name = "weight";
  parameter.shape = {4096};
  Start(Spec(ParameterSpace({GroupSpec{{parameter}}}), PartitionPolicy::kReplicated));
  views_.Unregister(kInspectedOptimizer, 0);
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
  constexpr int64_t kElementsOfLast = 9;
  parameters[2].shape = {kElementsOfLast};
  Start(Spec(ParameterSpace({GroupSpec{std::move(parameters)}})));  // rank 0 owns 0 and 2
  absl::Mutex mutex;
  bool goes_on = false;  // beyond the values of parameter 2
  views_of_[0]->read = [&](int64_t, absl::Span<double> out) -> absl::StatusOr<StepNumber> {
    absl::MutexLock lock(&mutex);
    if (out.size() == kElementsOfLast) mutex.Await(absl::Condition(&goes_on));
    return StepNumber{1};
  };
  const auto let_it_go_on = [&](bool go_on) {
    absl::MutexLock lock(&mutex);
    goes_on = go_on;
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
  v1::GetStatisticsResponse first = ask("");
  // Owners go through values where nobody else wants a CPU: on a busy machine not within the
  // second.
  for (int attempt = 0; attempt < 20 && first.parameters_size() < 2; ++attempt) {
    let_it_go_on(true);
    for (int look = 0; look < 20 && ask("").parameters_size() < 3; ++look) {
    }
    let_it_go_on(false);
    first = ask("");
  }
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
  let_it_go_on(true);
  int not_scanned = 3;
  for (int look = 0; look < 20 && not_scanned > 0; ++look) {
    not_scanned = ask("2").parameters(0).not_scanned_size();
  }
  EXPECT_EQ(not_scanned, 0);
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

}  // namespace
}  // namespace optshard::testing

// The ShardInspection service over a loopback server.

#include "server/shard/inspection/shard_inspection_service.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/optshard/v1/inspection.grpc.pb.h"
#include "tests/server/shard/inspection/shard_owner_service_fixture.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

class ShardInspectionServiceTest : public ShardOwnerServiceTest {
 protected:
  ShardInspectionServiceTest()
      : inspection_(v1::ShardInspection::NewStub(
            MakeChannel(absl::StrCat("127.0.0.1:", server_->port())))) {
    request_.set_statistics(true);
  }

  grpc::Status DescribeSlots() {
    response_.Clear();
    return inspection_->DescribeSlots(Context().get(), request_, &response_);
  }

  const std::unique_ptr<v1::ShardInspection::Stub> inspection_;
  v1::DescribeSlotsRequest request_;
  v1::DescribeSlotsResponse response_;
};

TEST_F(ShardInspectionServiceTest, Statistics_AreOfTheOwnedElements) {
  Register();
  view_.slot_format = StateFormat::kBFloat16;
  request_.add_parameters(1);
  request_.set_slot("exp_avg");
  const grpc::Status status = DescribeSlots();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response_.generation(), 3);
  ASSERT_EQ(response_.parts_size(), 1);
  const v1::ParameterPart& part = response_.parts(0);
  EXPECT_EQ(part.parameter(), 1);
  EXPECT_EQ(part.offset_elements(), 50000);
  EXPECT_EQ(part.elements(), 50000);
  EXPECT_EQ(part.step(), 12);
  ASSERT_EQ(part.slots_size(), 1);
  const v1::SlotPart& slot = part.slots(0);
  EXPECT_EQ(slot.slot(), "exp_avg");
  EXPECT_EQ(slot.format(), v1::STATE_FORMAT_BFLOAT16);
  EXPECT_EQ(slot.elements(), 50000);
  EXPECT_EQ(slot.min(), 50000);
  EXPECT_EQ(slot.max(), 99999);
  EXPECT_EQ(slot.sum(), 50000 * 74999.5);
  EXPECT_EQ(slot.zeros(), 0);
  EXPECT_EQ(slot.first_step(), 1);
  EXPECT_EQ(slot.last_step(), 1);
}

TEST_F(ShardInspectionServiceTest, WithoutStatistics_ReadsNothing) {
  Register();
  view_.read = [](int64_t, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    return absl::InternalError("was read");
  };
  view_.slices[0].slots = {"row_var", "exp_avg", "step"};
  view_.slices[0].slot_shapes = {{"row_var", {10, 1}}, {"step", {}}};
  request_.set_statistics(false);
  for (const int parameter : {1, 0, 7}) request_.add_parameters(parameter);
  ASSERT_TRUE(DescribeSlots().ok());
  ASSERT_EQ(response_.parts_size(), 2);  // nothing is owned of 7
  EXPECT_EQ(response_.parts(0).parameter(), 1);
  const v1::ParameterPart& part = response_.parts(1);
  ASSERT_EQ(part.slots_size(), 3);
  EXPECT_TRUE(part.slots(0).is_whole());
  EXPECT_EQ(part.slots(0).elements(), 10);
  EXPECT_FALSE(part.slots(1).is_whole());
  EXPECT_EQ(part.slots(1).elements(), 640);
  EXPECT_TRUE(part.slots(2).is_whole());
  EXPECT_EQ(part.slots(2).elements(), 1);
}

TEST_F(ShardInspectionServiceTest, ErrorOfARead_IsTheCalls) {
  Register();
  view_.read = [](int64_t, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    return absl::DataLossError("torn");
  };
  request_.add_parameters(0);
  const grpc::Status status = DescribeSlots();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
}

TEST_F(ShardInspectionServiceTest, BadRequests_AreRefused) {
  Register();
  request_.add_parameters(-1);
  grpc::Status status = DescribeSlots();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("parameter is -1"));
  request_.clear_parameters();
  for (int p = 0; p < 1001; ++p) request_.add_parameters(p);
  status = DescribeSlots();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("1001 parameters, expected at most 1000"));
  request_.clear_parameters();
  request_.set_slot(std::string(1025, 'x'));
  EXPECT_EQ(DescribeSlots().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request_.clear_slot();
  request_.set_rank(5);
  EXPECT_EQ(DescribeSlots().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ShardInspectionServiceTest, SeveralCalls_ScanOneAfterTheOther) {
  Register();
  std::atomic<int> at_once{0};
  std::atomic<bool> overlap{false};
  view_.read = [&](int64_t, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    if (at_once.fetch_add(1) > 0) overlap = true;
    std::this_thread::yield();
    at_once.fetch_sub(1);
    return StepNumber{1};
  };
  request_.add_parameters(1);
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([this] {
      v1::DescribeSlotsResponse response;
      const grpc::Status status = inspection_->DescribeSlots(Context().get(), request_, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_FALSE(overlap);
}

TEST_F(ShardInspectionServiceTest, ClientThatHasGone_EndsTheScan) {
  Register();
  absl::Notification reads;
  std::atomic<int> pieces{0};
  auto context = Context();
  view_.read = [&](int64_t, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    if (pieces.fetch_add(1) == 0) reads.Notify();
    return StepNumber{1};
  };
  view_.slices[1].elements = int64_t{1} << 50;  // for ever
  request_.add_parameters(1);
  std::thread canceller([&] {
    reads.WaitForNotification();
    context->TryCancel();
  });
  const grpc::Status status = inspection_->DescribeSlots(context.get(), request_, &response_);
  canceller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  // The next one has its turn.
  view_.slices[1].elements = 5;
  EXPECT_TRUE(DescribeSlots().ok());
}

TEST_F(ShardInspectionServiceTest, TimeIsOver_GivesWhatWasGoneThrough) {
  absl::Notification go_on;
  std::atomic<int> pieces{0};
  view_.read = [&](int64_t, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    if (++pieces > 1) go_on.WaitForNotification();
    return StepNumber{1};
  };
  Register();
  request_.add_parameters(0);
  auto context = Context();
  context->set_deadline(DeadlineAfter(absl::Milliseconds(500)));
  const grpc::Status status = inspection_->DescribeSlots(context.get(), request_, &response_);
  EXPECT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response_.parts_size(), 1);
  ASSERT_GE(response_.parts(0).slots_size(), 2);
  EXPECT_FALSE(response_.parts(0).slots(0).not_scanned());
  EXPECT_EQ(response_.parts(0).slots(0).last_step(), 1);
  EXPECT_TRUE(response_.parts(0).slots(1).not_scanned());
  // Another call comes to nothing, since nobody goes through values.
  context = Context();
  context->set_deadline(DeadlineAfter(absl::Milliseconds(100)));
  EXPECT_TRUE(inspection_->DescribeSlots(context.get(), request_, &response_).ok());
  EXPECT_TRUE(response_.parts(0).slots(0).not_scanned());
  go_on.Notify();
  EXPECT_TRUE(DescribeSlots().ok());
  EXPECT_FALSE(response_.parts(0).slots(1).not_scanned());
}

TEST_F(ShardInspectionServiceTest, AskedForAnotherJobOrIncarnation_IsRefused) {
  Register();
  const MemberId member = view_.description.member;
  request_.add_parameters(0);
  request_.set_statistics(false);
  request_.set_job(member.job);
  request_.set_incarnation(member.incarnation);
  EXPECT_TRUE(DescribeSlots().ok());
  request_.set_incarnation(member.incarnation + 1);
  EXPECT_EQ(DescribeSlots().error_code(), grpc::StatusCode::ABORTED);
  request_.set_incarnation(0);
  request_.set_job("another");
  const grpc::Status refused = DescribeSlots();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(refused.error_message(), HasSubstr("not of \"another\""));
  v1::ListShardStepsRequest steps;
  steps.set_job("another");
  v1::ListShardStepsResponse listed;
  EXPECT_EQ(inspection_->ListSteps(Context().get(), steps, &listed).error_code(),
            grpc::StatusCode::NOT_FOUND);
  v1::DescribeShardRequest shard;
  shard.set_job("another");
  v1::ShardDescription described;
  EXPECT_EQ(stub_->DescribeShard(Context().get(), shard, &described).error_code(),
            grpc::StatusCode::NOT_FOUND);
  v1::ReadSlotRequest slot;
  slot.set_slot("exp_avg");
  slot.set_job("another");
  EXPECT_EQ(stub_->ReadSlot(Context().get(), slot)->Finish().error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(ShardInspectionServiceTest, RankInAStep_IsReadAfterIt) {
  Register();
  std::atomic<int> asked{0};
  view_.activity = [&asked] {
    RankActivity activity;
    activity.phase = ++asked < 3 ? RankPhase::kApply : RankPhase::kIdle;
    return activity;
  };
  int asked_before = 0;
  view_.read = [&](int64_t, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    asked_before = asked;
    return StepNumber{1};
  };
  request_.add_parameters(0);
  request_.set_slot("exp_avg");
  EXPECT_TRUE(DescribeSlots().ok());
  EXPECT_EQ(asked_before, 3);
}

TEST_F(ShardInspectionServiceTest, StepWithoutEnd_IsNotWaitedFor) {
  Register();
  view_.activity = [] { return RankActivity{RankPhase::kCommit, absl::Hours(1)}; };
  request_.add_parameters(0);
  request_.set_slot("exp_avg");
  EXPECT_TRUE(DescribeSlots().ok());
}

TEST_F(ShardInspectionServiceTest, Steps_HaveTheirDurations) {
  for (const char* phase : {"prepare", "commit", "apply"}) {
    TimelineSpan span;
    span.step = 5;
    span.phase = phase;
    span.duration_us = static_cast<unsigned char>(phase[0]);
    view_.timeline.push_back(span);
  }
  Register();
  v1::ListShardStepsResponse response;
  ASSERT_TRUE(inspection_->ListSteps(Context().get(), v1::ListShardStepsRequest(), &response).ok());
  ASSERT_EQ(response.steps_size(), 1);
  EXPECT_EQ(response.steps(0).step(), 5);
  EXPECT_EQ(response.steps(0).prepare_us(), 'p');
  EXPECT_EQ(response.steps(0).commit_us(), 'c');
  EXPECT_EQ(response.steps(0).apply_us(), 'a');
}

}  // namespace
}  // namespace optshard::testing

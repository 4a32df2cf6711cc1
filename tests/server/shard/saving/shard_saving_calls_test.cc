// Calls to save that end early, wait, or are too many.
#include <atomic>
#include <functional>
#include <system_error>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/saving/shard_save.h"
#include "server/shard/saving/shard_saving_service.h"
#include "tests/server/shard/saving/shard_saving_fixture.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

void ExpectASecondCallIsRefused(v1::ShardSaving::Stub& stub) {
  SaveCall first(stub);
  ASSERT_TRUE(first.Prepare(0, 7).has_prepared());
  SaveCall second(stub);
  second.Prepare(0, 8);
  EXPECT_EQ(second.Code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ShardSavingServiceTest, AClientThatGoes_LeavesNoFileAndNoSnapshot) {
  // Numbers of their own: the first call may not have ended when the second one prepares.
  for (const uint64_t snapshot : {7, 8}) {
    SaveCall call(*stub_);
    ASSERT_TRUE(call.Prepare(0, snapshot).has_prepared());
    if (snapshot == 8) {
      ASSERT_TRUE(call.Open().has_opened());
    }
    call.Cancel();
    EXPECT_EQ(call.Code(), grpc::StatusCode::CANCELLED);
  }
  server_->Shutdown();  // by then the calls have ended
  const auto snapshots = rig_.owner(0).view().agreed_snapshots();
  ASSERT_TRUE(snapshots.ok()) << snapshots.status();
  for (const SnapshotId snapshot : {7, 8}) {
    EXPECT_EQ((*snapshots)->Open(snapshot, absl::ZeroDuration()).status().code(),
              absl::StatusCode::kAborted);
  }
  EXPECT_TRUE(root_->OpenDirectory(kSavedName).value()->List()->empty());
}

TEST_F(ShardSavingServiceTest, ASaveThatIsCancelledWhileItsStepIsAwaited_EndsAtOnce) {
  ShardSave save(SaveOptions());
  ShardSave::Shard shard;
  shard.selector.rank = 0;
  shard.snapshot = 7;
  shard.at_step = 1000;
  ASSERT_EQ(save.Prepare(shard), absl::OkStatus());
  std::thread waits([&save] {
    EXPECT_EQ(save.Open(absl::Seconds(20)).status(), absl::CancelledError("gives way"));
  });
  cancellation_.Cancel(absl::CancelledError("gives way"));
  waits.join();
  // The only snapshot that there is memory for.
  EXPECT_TRUE(SaveCall(*stub_).Prepare(0, 8).has_prepared());
}

TEST_F(ShardSavingServiceTest, WhereNoThreadCanBeStarted_StepsCopyAndTheSaveIsWritten) {
  ShardSave::Options options = SaveOptions();
  options.start_thread = [](const std::function<void()>&) -> std::thread {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  };
  ShardSave save(options);
  ShardSave::Shard shard;
  shard.selector.rank = 0;
  shard.snapshot = 7;
  ASSERT_EQ(save.Prepare(shard), absl::OkStatus());
  ASSERT_TRUE(save.Open(absl::Seconds(20)).ok());
  ASSERT_EQ(save.Copy(), absl::OkStatus());
  rig_.GiveGradients(2);
  for (const auto& stepped : rig_.Step()) EXPECT_EQ(stepped.status(), absl::OkStatus());
  const auto written = save.Write("/", kSavedName, [](int64_t, int64_t) {});
  EXPECT_EQ(written.status(), absl::OkStatus());
}

TEST_F(ShardSavingServiceTest, ACallThatGetsNoThread_IsRefusedAndTheNextOneIsServed) {
  ShardSavingService::Options options;
  options.start_thread = [refused = std::make_shared<std::atomic<bool>>(false)](
                             std::function<void()> run) -> std::thread {
    if (!refused->exchange(true)) {
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    }
    return std::thread(std::move(run));
  };
  Serve(options);
  EXPECT_EQ(SaveCall(*stub_).Code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(SaveCall(*stub_).Prepare(0, 7).has_prepared());
}

TEST_F(ShardSavingServiceTest, TheMemoryOfACallThatIsBeingCancelled_IsAwaited) {
  SaveCall first(*stub_);
  v1::SaveShardRequest request;
  request.mutable_prepare()->set_rank(0);
  request.mutable_prepare()->set_snapshot_id(7);
  request.mutable_prepare()->set_at_step(1000);
  ASSERT_TRUE(first.Ask(request).has_prepared());
  v1::SaveShardRequest open;
  open.mutable_open()->set_patience_ms(20'000);
  first.Send(open);
  SaveCall next(*stub_);
  request.mutable_prepare()->set_snapshot_id(8);
  next.Send(request);
  first.Cancel();
  EXPECT_TRUE(next.Answer().has_prepared());
}

TEST_F(ShardSavingServiceTest, MemoryThatNobodyGivesBack_IsRefused) {
  ShardSavingService::Options options;
  options.memory_patience = absl::Milliseconds(1);
  Serve(options);
  ExpectASecondCallIsRefused(*stub_);
}

TEST_F(ShardSavingServiceTest, AClientThatSendsNothing_IsGivenUp) {
  ShardSavingService::Options options;
  options.longest_silence = absl::Milliseconds(1);
  Serve(options);
  SaveCall call(*stub_);
  const grpc::Status status = call.Finish().status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("has not sent prepare"));
}

TEST_F(ShardSavingServiceTest, AStepToCome_IsAwaitedAndOneThatIsOverRefused) {
  v1::SaveShardRequest request;
  request.mutable_prepare()->set_rank(0);
  request.mutable_prepare()->set_snapshot_id(7);
  request.mutable_prepare()->set_at_step(2);
  SaveCall call(*stub_);
  ASSERT_TRUE(call.Ask(request).has_prepared());
  for (const StepNumber step : {2, 3}) {
    rig_.GiveGradients(static_cast<int>(step));
    for (const auto& stepped : rig_.Step()) EXPECT_EQ(stepped->step, step);
  }
  EXPECT_EQ(call.Open().opened().step(), 2);
  call.Cancel();  // its memory is the next one's
  call.Code();
  SaveCall late(*stub_);
  request.mutable_prepare()->set_snapshot_id(8);
  late.Ask(request);
  EXPECT_EQ(late.Code(), grpc::StatusCode::ABORTED);
}

TEST_F(ShardSavingServiceTest, AClientThatSaysHowLongItMayBeSilent_IsGivenUpThen) {
  SaveCall call(*stub_);
  ASSERT_TRUE(call.Prepare(0, 7, "", 1).has_prepared());
  const grpc::Status status = call.Finish().status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("has not sent open for 1ms"));
}

TEST_F(ShardSavingServiceTest, TooManyCalls_AreRefused) {
  ShardSavingService::Options options;
  options.most_calls = 1;
  Serve(options);
  ExpectASecondCallIsRefused(*stub_);
}

}  // namespace
}  // namespace optshard::testing

#include "server/coordinator/saving/checkpoint_saves.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_list.h"
#include "tests/server/coordinator/saving/fake_saving_owners.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using testing::FakeFileSystem;
using testing::FakeSavingOwners;
using ::testing::HasSubstr;
using testing::SaveCall;

class CheckpointSavesTest : public ::testing::Test {
 protected:
  CheckpointSavesTest() : owners_(&system_, 5) { Restart(); }

  void Restart() {
    CheckpointSaves::Options options;
    options.driver.files = &system_;
    options.driver.owners = &owners_;
    options.directory = "/default";
    options.prune.keep_last = 1;
    saves_ = std::make_unique<CheckpointSaves>(options);
  }

  static SaveRequest To(const std::string& directory) {
    SaveRequest request;
    request.directory = directory;
    return request;
  }

  static CheckpointSave::Status Await(CheckpointSave& save) {
    struct Ended {
      absl::Mutex mutex;
      bool is_it ABSL_GUARDED_BY(mutex) = false;
    };
    const auto ended = std::make_shared<Ended>();
    const auto look = [ended, &save] {
      const bool is_it = save.Read().ended;
      absl::MutexLock lock(&ended->mutex);
      ended->is_it = ended->is_it || is_it;
    };
    const auto watch = save.Watch(look);
    look();
    {
      absl::MutexLock lock(&ended->mutex);
      ended->mutex.Await(absl::Condition(&ended->is_it));
    }
    save.Unwatch(watch);
    return save.Read();
  }

  // A save to /dir that is in the middle of being written.
  std::shared_ptr<CheckpointSave> BeginSilent(const SaveRequest& request = To("/dir")) {
    owners_.Silence(SaveCall::kWrite, 1);
    auto save = saves_->Begin(request);
    EXPECT_TRUE(save.ok()) << save.status();
    owners_.AwaitSilent(1);
    owners_.SilenceNobody();
    return *std::move(save);
  }

  FakeFileSystem system_;
  FakeSavingOwners owners_;
  std::unique_ptr<CheckpointSaves> saves_;
};

TEST_F(CheckpointSavesTest, ARequest_IsCarriedOut) {
  const auto save = saves_->Begin(To("/dir"));
  ASSERT_TRUE(save.ok()) << save.status();
  const CheckpointSave::Status status = Await(**save);
  EXPECT_EQ(status.error, absl::OkStatus());
  EXPECT_EQ(status.saved.name, "step-000000000005");
  EXPECT_THAT(Summary(status, "/dir"), HasSubstr("saved step 5 to /dir/step-000000000005, "));
  EXPECT_TRUE(system_.OpenDirectory("/dir/step-000000000005").ok());
}

TEST_F(CheckpointSavesTest, ASaveThatFails_SaysSoAndTheNextOneBegins) {
  owners_.before = [](SaveCall, Rank) { return absl::UnavailableError("no owner"); };
  const auto failed = saves_->Begin(To("/dir"));
  const CheckpointSave::Status status = Await(**failed);
  EXPECT_EQ(status.error.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Summary(status, "/dir"), HasSubstr("no owner"));
  owners_.before = [](SaveCall, Rank) { return absl::OkStatus(); };
  const auto save = saves_->Begin(To("/dir"));
  ASSERT_TRUE(save.ok()) << save.status();
  EXPECT_EQ(Await(**save).error, absl::OkStatus());
}

TEST_F(CheckpointSavesTest, AnotherRequestMeanwhile_IsRefusedWithHowFarItIs) {
  const auto save = BeginSilent();
  const absl::Status refused = saves_->Begin(To("/other")).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("writing step 5 to /dir/step-000000000005: "));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("1 of 2 ranks done"));
  SaveRequest of_another = To("/dir");
  of_another.optimizer = "discriminator";
  EXPECT_TRUE(saves_->Begin(of_another).ok());
  saves_->Shutdown();
}

TEST_F(CheckpointSavesTest, ExportsAndSaves_ComeOneAtATime) {
  SaveRequest model = To("/dir");
  model.step = 5;
  model.model_shard_bytes = 1000;
  SaveRequest checkpoint = To("/dir");
  checkpoint.step = 5;
  const auto exporting = BeginSilent(model);
  const absl::Status refused = saves_->Begin(checkpoint).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("writing step 5 to /dir: "));
  EXPECT_EQ(saves_->Begin(model).value(), exporting);
  model.model_shard_bytes = 2000;
  EXPECT_EQ(saves_->Begin(model).status().code(), absl::StatusCode::kFailedPrecondition);
  owners_.AnswerAll(absl::UnavailableError("given up"));
  const CheckpointSave::Status status = Await(*exporting);
  EXPECT_EQ(Summary(status, "/dir"), "no model in /dir: rank 1: given up");
  // And the other way round; the file system has nothing of the first one.
  EXPECT_EQ(system_.OpenDirectory("/").value()->List()->size(), 0u);
  const auto saving = BeginSilent(checkpoint);
  EXPECT_EQ(saves_->Begin(model).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CheckpointSavesTest, AModelThatCannotBe_IsRefused) {
  SaveRequest request = To("");
  request.model_shard_bytes = 1000;
  EXPECT_EQ(saves_->Begin(request).status().code(), absl::StatusCode::kInvalidArgument);
  request.directory = "/dir";
  request.model_shard_bytes = 0;
  EXPECT_EQ(saves_->Begin(request).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(owners_.connects(), 0);
}

TEST_F(CheckpointSavesTest, TheSameRequest_JoinsWhatIsUnderWay) {
  SaveRequest request = To("/dir");
  request.request_id = "a";
  request.step = 5;
  const auto save = BeginSilent(request);
  EXPECT_EQ(*saves_->Begin(request), save);
  SaveRequest retry = To("");
  retry.request_id = "a";
  EXPECT_EQ(*saves_->Begin(retry), save);
  SaveRequest of_a_rank = To("/dir");
  of_a_rank.step = 5;
  EXPECT_EQ(*saves_->Begin(of_a_rank), save);
  of_a_rank.step = 6;
  EXPECT_FALSE(saves_->Begin(of_a_rank).ok());
  of_a_rank.step = 5;
  of_a_rank.directory = "/other";
  EXPECT_FALSE(saves_->Begin(of_a_rank).ok());
  saves_->Shutdown();
}

TEST_F(CheckpointSavesTest, ARankThatComesLate_GetsWhatTheOthersGot) {
  SaveRequest request = To("/dir");
  request.step = 5;
  const auto save = saves_->Begin(request);
  Await(**save);
  EXPECT_EQ(*saves_->Begin(request), *save);
  EXPECT_EQ(owners_.connects(), 1);
  owners_.SetStep(6);
  request.step = 6;
  const auto next = saves_->Begin(request);
  EXPECT_NE(*next, *save);
  EXPECT_EQ(Await(**next).saved.step, 6);
}

TEST_F(CheckpointSavesTest, ParamGroupsAreAddedAfterTheStep_IsAnotherSave) {
  SaveRequest request = To("/dir");
  request.step = 5;
  const auto save = saves_->Begin(request);
  Await(**save);
  owners_.present = 2;
  const auto next = saves_->Begin(request);
  EXPECT_NE(*next, *save);
  EXPECT_EQ(Await(**next).saved.name, "step-000000000005.1");
}

TEST_F(CheckpointSavesTest, ASaveThatWaitsForItsStep_GivesWayToAnyOther) {
  SaveRequest waiting = To("/dir");
  waiting.step = 10;
  waiting.awaits_step = true;
  owners_.Silence(SaveCall::kPrepare, 0);
  const auto save = saves_->Begin(waiting);
  ASSERT_TRUE(save.ok()) << save.status();
  owners_.AwaitSilent(1);
  EXPECT_EQ(owners_.awaited_step, 10);
  EXPECT_EQ(saves_->Begin(waiting).value(), *save);
  owners_.SilenceNobody();
  SaveRequest other = To("/dir");
  other.step = 5;
  const auto next = saves_->Begin(other);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(Await(**save).error.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Await(**next).saved.step, 5);
  EXPECT_EQ(owners_.awaited_step, absl::nullopt);
}

TEST_F(CheckpointSavesTest, ASaveThatGaveWayAndHangs_KeepsNobodyWaiting) {
  absl::Notification goes_on;
  absl::Notification hangs;
  owners_.before = [&](SaveCall, Rank) {
    if (!hangs.HasBeenNotified()) hangs.Notify();
    goes_on.WaitForNotification();
    return absl::OkStatus();
  };
  SaveRequest waiting = To("/dir");
  waiting.step = 10;
  waiting.awaits_step = true;
  const auto save = saves_->Begin(waiting);
  hangs.WaitForNotification();
  const auto next = saves_->Begin(To("/dir"));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(saves_->Begin(To("/other")).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE((*save)->Read().ended);
  goes_on.Notify();
  EXPECT_EQ(Await(**next).saved.step, 5);
  EXPECT_EQ((*save)->Read().error.code(), absl::StatusCode::kAborted);
}

TEST_F(CheckpointSavesTest, ARequestThatCannotBe_GivesNothingUp) {
  SaveRequest waiting = To("/dir");
  waiting.step = 10;
  waiting.awaits_step = true;
  owners_.Silence(SaveCall::kPrepare, 0);
  const auto save = saves_->Begin(waiting);
  owners_.AwaitSilent(1);
  EXPECT_EQ(saves_->Begin(To("dir")).status().code(), absl::StatusCode::kInvalidArgument);
  SaveRequest labelled = To("/dir");
  labelled.labels = {""};
  EXPECT_EQ(saves_->Begin(labelled).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(saves_->Begin(waiting).value(), *save);
  EXPECT_EQ(owners_.cancelled(), 0);
  saves_->Shutdown();
}

TEST_F(CheckpointSavesTest, WhoJoins_AddsItsLabelsUntilItCommits) {
  absl::Notification writes;
  absl::Notification goes_on;
  owners_.before = [&](SaveCall call, Rank rank) {
    if (call != SaveCall::kWrite || rank != 1 || writes.HasBeenNotified()) return absl::OkStatus();
    writes.Notify();
    goes_on.WaitForNotification();
    return absl::OkStatus();
  };
  SaveRequest request = To("/dir");
  request.step = 5;
  const auto save = saves_->Begin(request);
  writes.WaitForNotification();
  request.labels = {"best"};
  EXPECT_EQ(*saves_->Begin(request), *save);
  goes_on.Notify();
  EXPECT_EQ(Await(**save).error, absl::OkStatus());
  const auto entries = ListCheckpoints(*system_.OpenDirectory("/dir").value());
  EXPECT_THAT(entries->front().labels, ElementsAre("best"));
  EXPECT_EQ(*saves_->Begin(request), *save);
  request.labels = {"last"};
  const auto next = saves_->Begin(request);
  EXPECT_NE(*next, *save);
  EXPECT_EQ(Await(**next).saved.name, "step-000000000005.1");
}

TEST_F(CheckpointSavesTest, ASaveThatHasFailed_AnswersItsOwnRequestOnly) {
  owners_.before = [](SaveCall, Rank) { return absl::UnavailableError("no owner"); };
  for (const bool awaits_step : {false, true}) {
    SaveRequest request = To("/dir");
    request.step = 5;
    request.request_id = "a";
    request.awaits_step = awaits_step;
    const auto failed = saves_->Begin(request);
    Await(**failed);
    EXPECT_EQ(*saves_->Begin(request), *failed);
    request.request_id = "b";
    const auto next = saves_->Begin(request);
    EXPECT_NE(*next, *failed);
    Await(**next);
  }
}

TEST_F(CheckpointSavesTest, AnotherStepThanIsAskedFor_IsNotSaved) {
  SaveRequest request = To("/dir");
  request.step = 4;
  const auto save = saves_->Begin(request);
  EXPECT_EQ(Await(**save).error.code(), absl::StatusCode::kAborted);
}

TEST_F(CheckpointSavesTest, OnlyTheCoordinatorsOwnDirectory_IsPruned) {
  for (const std::string directory : {"/dir", ""}) {
    for (const StepNumber step : {5, 6}) {
      owners_.SetStep(step);
      const auto save = saves_->Begin(To(directory));
      ASSERT_TRUE(save.ok()) << save.status();
      EXPECT_EQ(Await(**save).error, absl::OkStatus());
    }
  }
  EXPECT_TRUE(system_.OpenDirectory("/dir/step-000000000005").ok());
  EXPECT_FALSE(system_.OpenDirectory("/default/step-000000000005").ok());
  EXPECT_TRUE(system_.OpenDirectory("/default/step-000000000006").ok());
}

TEST_F(CheckpointSavesTest, Shutdown_GivesUpWhatIsUnderWay) {
  const auto save = BeginSilent();
  saves_->Shutdown();
  const CheckpointSave::Status status = save->Read();
  EXPECT_TRUE(status.ended);
  EXPECT_EQ(status.error.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(system_.OpenDirectory("/dir/step-000000000005").ok());
  EXPECT_EQ(saves_->Begin(To("/dir")).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(CheckpointSavesTest, WithoutAnyDirectory_IsRefused) {
  CheckpointSaves::Options options;
  options.driver.files = &system_;
  options.driver.owners = &owners_;
  EXPECT_EQ(CheckpointSaves(options).Begin(SaveRequest()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace optshard

// Models that the driver of checkpoints exports.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "gtest/gtest.h"
#include "server/checkpoint/model_export.h"
#include "server/coordinator/saving/checkpoint_driver.h"
#include "tests/server/coordinator/saving/fake_saving_owners.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using testing::FakeFileSystem;
using testing::FakeSavingOwners;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::SaveCall;
using testing::SavedModel;

constexpr StepNumber kStep = 2;
constexpr SaveCall kCalls[] = {SaveCall::kPrepare, SaveCall::kOpen, SaveCall::kWrite};

// Two ranks export to /model.
class ModelDriverTest : public ::testing::Test {
 protected:
  ModelDriverTest() : owners_(&system_, kStep) {
    options_.files = &system_;
    options_.owners = &owners_;
    order_.optimizer = "default";
    order_.directory = "/model";
    order_.model_shard_bytes = 10'000;
  }

  absl::StatusOr<SavedCheckpoint> Export() {
    return CheckpointDriver(options_).Save(order_, cancellation_, board_);
  }

  std::vector<std::string> Names(const std::string& path = "/") {
    std::vector<std::string> names;
    const auto entries = system_.OpenDirectory(path).value()->List();
    for (const DirectoryEntry& entry : *entries) names.push_back(entry.name);
    return names;
  }

  ModelLayout Layout() const {
    const auto parameters = SavedModel(kStep).Description(2, PartitionPolicy::kBalanced).parameters;
    return LayOutModel(ModelTensorsOf(parameters), *order_.model_shard_bytes).value();
  }

  FakeFileSystem system_;
  FakeSavingOwners owners_;
  CheckpointDriver::Options options_;
  SaveOrder order_;
  Cancellation cancellation_;
  const std::shared_ptr<SaveBoard> board_ = std::make_shared<SaveBoard>([] {});
};

TEST_F(ModelDriverTest, AllOwnersWrite_TheModelHasItsName) {
  order_.directory = "/model/";
  const auto exported = Export();
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ(exported->step, kStep);
  EXPECT_EQ(exported->name, "");
  EXPECT_EQ(exported->bytes, Layout().file_bytes());
  EXPECT_TRUE(owners_.connected_for_model);
  EXPECT_THAT(Names(), ElementsAre("model"));
  EXPECT_EQ(Names("/model").size(), Layout().files.size() + 1);
  const SaveProgress progress = board_->Read();
  EXPECT_EQ(progress.phase, SavePhase::kCommitting);
  EXPECT_EQ(progress.written, 2);
  EXPECT_EQ(progress.bytes, Layout().tensor_bytes);
  EXPECT_EQ(progress.bytes, progress.all_bytes);
}

TEST_F(ModelDriverTest, ADirectoryThatIsNotEmpty_IsRefusedBeforeAnybodyIsAsked) {
  ASSERT_EQ(Export().status(), absl::OkStatus());
  EXPECT_EQ(Export().status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(owners_.connects(), 1);
  order_.directory = "/nothing/model";
  EXPECT_EQ(Export().status().code(), absl::StatusCode::kNotFound);
  order_.directory = "/";
  EXPECT_EQ(Export().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(owners_.connects(), 1);
}

TEST_F(ModelDriverTest, AnOwnerThatFails_LeavesNothingAndIsNamed) {
  for (const SaveCall call : kCalls) {
    for (const Rank rank : {0, 1}) {
      owners_.before = [&](SaveCall made, Rank by) {
        return made == call && by == rank ? errors::PeerLost(by, "its stream broke")
                                          : absl::OkStatus();
      };
      const absl::Status failed = Export().status();
      EXPECT_TRUE(errors::IsPeerLost(failed)) << failed;
      EXPECT_THAT(std::string(failed.message()), HasSubstr(absl::StrCat("rank ", rank)));
      EXPECT_THAT(Names(), IsEmpty());
    }
  }
}

TEST_F(ModelDriverTest, AnOwnerThatDoesNotAnswer_IsNamed) {
  options_.prepare_timeout = options_.open_timeout = options_.longest_stall = absl::Milliseconds(1);
  for (const SaveCall call : kCalls) {
    owners_.Silence(call, 1);
    const absl::Status failed = Export().status();
    EXPECT_TRUE(errors::IsPeersTimedOut(failed)) << failed;
    EXPECT_THAT(errors::RanksOf(failed), ElementsAre(1));
    EXPECT_THAT(Names(), IsEmpty());
  }
}

TEST_F(ModelDriverTest, Cancelled_EndsWithTheReasonAndLeavesNothing) {
  for (const SaveCall call : kCalls) {
    owners_.Silence(call, 1);
    Cancellation cancellation;
    absl::Status failed;
    std::thread exporting(
        [&] { failed = CheckpointDriver(options_).Save(order_, cancellation, board_).status(); });
    owners_.AwaitSilent(1);
    cancellation.Cancel(absl::CancelledError("the coordinator is stopped"));
    exporting.join();
    EXPECT_EQ(failed, absl::CancelledError("the coordinator is stopped"));
    EXPECT_THAT(Names(), IsEmpty());
  }
}

TEST_F(ModelDriverTest, ElementsThatNobodyWrites_AreNoticed) {
  owners_.writes_all = false;
  const absl::Status failed = Export().status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(failed.message()),
              HasSubstr(absl::StrCat("of a model of ", Layout().tensor_bytes)));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(ModelDriverTest, ParamGroupsAddedMeanwhile_EndTheExport) {
  owners_.followed_now = owners_.present + 1;
  EXPECT_EQ(Export().status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_EQ(owners_.cancelled(), 2);
}

TEST_F(ModelDriverTest, AFullDisk_LeavesNothing) {
  system_.SetCapacity(Layout().file_bytes() - 1);
  EXPECT_EQ(Export().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Names(), IsEmpty());
}

}  // namespace
}  // namespace optshard

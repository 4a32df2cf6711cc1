#include "server/coordinator/saving/checkpoints_service.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/server_rpc.h"
#include "gtest/gtest.h"
#include "tests/server/coordinator/saving/fake_saving_owners.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using testing::FakeFileSystem;
using testing::FakeSavingOwners;
using ::testing::HasSubstr;
using testing::SaveCall;

// Two ranks, over real gRPC; /own is the coordinator's directory.
class CheckpointsServiceTest : public ::testing::Test {
 protected:
  CheckpointsServiceTest() : owners_(&system_, 5) {
    CheckpointSaves::Options options;
    options.driver.files = &system_;
    options.driver.owners = &owners_;
    options.directory = "/own";
    saves_ = std::make_unique<CheckpointSaves>(options);
    service_ = std::make_unique<CheckpointsService>(saves_.get(), 2);
    auto listening = StartServer("127.0.0.1:0", {service_.get()});
    server_ = std::move(listening->server);
    stub_ = v1::Checkpoints::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", listening->port)));
  }
  ~CheckpointsServiceTest() override {
    saves_->Shutdown();
    server_->Shutdown();
  }

  struct Answer {
    grpc::Status status;
    std::vector<v1::SaveCheckpointUpdate> updates;
  };
  Answer Save(const v1::SaveCheckpointRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(absl::Seconds(20)));
    return AnswerOf(*stub_->SaveCheckpoint(&context, request));
  }
  Answer Export(const v1::ExportModelRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(absl::Seconds(20)));
    return AnswerOf(*stub_->ExportModel(&context, request));
  }
  static Answer AnswerOf(grpc::ClientReader<v1::SaveCheckpointUpdate>& stream) {
    Answer answer;
    v1::SaveCheckpointUpdate update;
    while (stream.Read(&update)) answer.updates.push_back(update);
    answer.status = stream.Finish();
    return answer;
  }

  grpc::Status List(const v1::ListCheckpointsRequest& request,
                    v1::ListCheckpointsResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(absl::Seconds(20)));
    return stub_->ListCheckpoints(&context, request, response);
  }

  FakeFileSystem system_;
  FakeSavingOwners owners_;
  std::unique_ptr<CheckpointSaves> saves_;
  std::unique_ptr<CheckpointsService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Checkpoints::Stub> stub_;
};

TEST_F(CheckpointsServiceTest, SaveCheckpoint_EndsWithWhatWasCommitted) {
  v1::SaveCheckpointRequest request;
  request.set_directory("/dir");
  request.add_labels("best");
  const Answer answer = Save(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_FALSE(answer.updates.empty());
  const v1::SaveCheckpointUpdate& last = answer.updates.back();
  EXPECT_TRUE(last.committed());
  EXPECT_TRUE(last.opened());
  EXPECT_EQ(last.name(), "step-000000000005");
  EXPECT_EQ(last.directory(), "/dir");
  EXPECT_EQ(last.step(), 5);
  EXPECT_EQ(last.world_size(), 2);
  EXPECT_EQ(last.ranks_done(), 2);
  EXPECT_EQ(last.bytes(), last.total_bytes());
  EXPECT_THAT(last.summary(), HasSubstr("saved step 5 to /dir/step-000000000005, "));
  for (size_t i = 0; i + 1 < answer.updates.size(); ++i) {
    EXPECT_FALSE(answer.updates[i].committed());
    EXPECT_LE(answer.updates[i].phase(), answer.updates[i + 1].phase());
  }
  v1::ListCheckpointsRequest list;
  list.set_directory("/dir");
  v1::ListCheckpointsResponse page;
  ASSERT_TRUE(List(list, &page).ok());
  ASSERT_EQ(page.checkpoints_size(), 1);
  EXPECT_EQ(page.checkpoints(0).state(), "committed");
  EXPECT_EQ(page.checkpoints(0).job(), "digits");
  EXPECT_THAT(page.checkpoints(0).labels(), ElementsAre("best"));
  EXPECT_EQ(page.summary(), "1 checkpoints, 1 of them committed");
}

TEST_F(CheckpointsServiceTest, ExportModel_EndsWithTheModel) {
  v1::ExportModelRequest request;
  request.set_directory("/model");
  request.set_shard_bytes(10'000);
  request.set_step(5);
  const Answer answer = Export(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const v1::SaveCheckpointUpdate& last = answer.updates.back();
  EXPECT_TRUE(last.committed());
  EXPECT_EQ(last.name(), "");
  EXPECT_EQ(last.directory(), "/model");
  EXPECT_EQ(last.step(), 5);
  EXPECT_EQ(last.ranks_done(), 2);
  EXPECT_EQ(last.bytes(), last.total_bytes());
  EXPECT_THAT(last.summary(), HasSubstr("saved step 5 to /model, "));
  EXPECT_THAT(answer.updates.front().summary(), HasSubstr("/model"));
  EXPECT_TRUE(
      system_.OpenDirectory("/model").value()->OpenFile("model.safetensors.index.json").ok());
}

TEST_F(CheckpointsServiceTest, ExportsThatCannotBe_AreRefused) {
  const auto code = [&](const std::string& directory, int64_t shard_bytes) {
    v1::ExportModelRequest request;
    request.set_directory(directory);
    request.set_shard_bytes(shard_bytes);
    return Export(request).status.error_code();
  };
  EXPECT_EQ(code("/model", -1), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("", 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("model", 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("/model/../other", 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(owners_.connects(), 0);
  EXPECT_EQ(code("/model", 0), grpc::StatusCode::OK);
  EXPECT_EQ(code("/model", 0), grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(CheckpointsServiceTest, TheOwnersError_IsTheCallers) {
  owners_.before = [](SaveCall call, Rank rank) {
    return call == SaveCall::kWrite && rank == 1 ? absl::ResourceExhaustedError("no space")
                                                 : absl::OkStatus();
  };
  const Answer answer = Save(v1::SaveCheckpointRequest());
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("rank 1: no space"));
}

TEST_F(CheckpointsServiceTest, RequestsThatCannotBe_AreRefused) {
  v1::SaveCheckpointRequest request;
  request.set_rank(2);
  EXPECT_EQ(Save(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_rank(-1);
  EXPECT_EQ(Save(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.clear_rank();
  request.set_directory("/own/../other");
  EXPECT_EQ(Save(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.clear_directory();
  request.set_request_id(std::string(257, 'x'));
  EXPECT_EQ(Save(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(owners_.connects(), 0);
}

TEST_F(CheckpointsServiceTest, WhoFollowsARank_IsToldWhenThatHasOpened) {
  owners_.Silence(SaveCall::kOpen, 1);
  v1::SaveCheckpointRequest request;
  request.set_rank(0);
  request.set_request_id("a");
  grpc::ClientContext contexts[2];
  const auto of_rank_0 = stub_->SaveCheckpoint(&contexts[0], request);
  v1::SaveCheckpointUpdate update;
  while (of_rank_0->Read(&update) && !update.opened()) {
  }
  EXPECT_TRUE(update.opened());
  EXPECT_EQ(update.step(), 5);
  request.set_rank(1);
  const auto of_rank_1 = stub_->SaveCheckpoint(&contexts[1], request);
  ASSERT_TRUE(of_rank_1->Read(&update));
  EXPECT_FALSE(update.opened());
  contexts[0].TryCancel();  // the save goes on
  of_rank_0->Finish();
  owners_.AwaitSilent(1);
  owners_.AnswerAll(absl::AbortedError("too late"));
  owners_.AwaitSilent(1);  // it is tried again
  owners_.AnswerAll(absl::UnavailableError("the rank is gone"));
  while (of_rank_1->Read(&update)) {
  }
  EXPECT_EQ(of_rank_1->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(CheckpointsServiceTest, ListCheckpoints_GivesPages) {
  ASSERT_TRUE(Save(v1::SaveCheckpointRequest()).status.ok());
  ASSERT_TRUE(Save(v1::SaveCheckpointRequest()).status.ok());
  ASSERT_EQ(system_.OpenDirectory("/own").value()->CreateDirectory("step-000000000009"),
            absl::OkStatus());
  v1::ListCheckpointsRequest request;
  request.set_page_size(2);
  v1::ListCheckpointsResponse page;
  ASSERT_TRUE(List(request, &page).ok());
  EXPECT_EQ(page.summary(), "3 checkpoints, 2 of them committed");
  EXPECT_EQ(page.checkpoints_size(), 2);
  request.set_page_token(page.next_page_token());
  ASSERT_TRUE(List(request, &page).ok());
  ASSERT_EQ(page.checkpoints_size(), 1);
  EXPECT_EQ(page.checkpoints(0).name(), "step-000000000009");
  EXPECT_EQ(page.checkpoints(0).state(), "not committed");
  EXPECT_EQ(page.next_page_token(), "");
  request.set_page_token("second");
  EXPECT_EQ(List(request, &page).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.clear_page_token();
  request.set_page_size(-1);
  EXPECT_EQ(List(request, &page).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_page_size(0);
  request.set_directory("../own");
  EXPECT_EQ(List(request, &page).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_directory("/nothing");
  EXPECT_EQ(List(request, &page).error_code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace optshard

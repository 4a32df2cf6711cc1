// What a coordinator has owners write, and what they refuse to.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/commit.h"
#include "server/checkpoint/manifest_json.h"
#include "server/checkpoint/model_export.h"
#include "server/checkpoint/model_layout.h"
#include "server/checkpoint/state_file/checkpoint_export.h"
#include "server/shard/inspection/rank_phase.h"
#include "tests/server/shard/saving/shard_saving_fixture.h"
#include "tests/testing/files_in.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(ShardSavingServiceTest, AllOwners_WriteWhatCanBeCommittedWhileStepsGoOn) {
  std::vector<std::unique_ptr<SaveCall>> calls;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    calls.push_back(std::make_unique<SaveCall>(*stub_));
    ASSERT_TRUE(calls.back()->Prepare(rank, 7).has_prepared());
  }
  for (const auto& call : calls) {
    const v1::SaveShardResponse opened = call->Open();
    EXPECT_EQ(opened.opened().step(), 1);
    EXPECT_EQ(opened.opened().generation(), 1);
  }
  rig_.GiveGradients(2);
  for (const auto& stepped : rig_.Step()) EXPECT_EQ(stepped.status(), absl::OkStatus());
  std::vector<OwnerPart> parts;
  CheckpointManifest description;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    calls[rank]->Write("/", kSavedName);
    const SaveCall::Written written = calls[rank]->Finish();
    ASSERT_TRUE(written.status.ok()) << written.status.error_message();
    parts.push_back(*ParseOwnerPart(written.part));
    EXPECT_EQ(written.description.empty(), rank != 0);
    if (rank == 0) description = *ParseDescription(written.description);
  }
  description.step = 1;
  const auto manifest = MakeManifest(description, std::move(parts));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->world_size, kRanks);
  EXPECT_EQ(manifest->parameters.at(0).steps, 1);
  EXPECT_EQ(manifest->groups.at(0).name, "adam");
  EXPECT_EQ(CommitCheckpoint(*root_->OpenDirectory(kSavedName).value(), *manifest),
            absl::OkStatus());
}

TEST_F(ShardSavingServiceTest, AllOwners_WriteAModelOfOneStepWhileStepsGoOn) {
  // What a checkpoint of the same step gives.
  std::vector<OwnerPart> parts;
  CheckpointManifest description;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    SaveCall call(*stub_);
    ASSERT_TRUE(call.Prepare(rank, 1 + rank).has_prepared());
    ASSERT_TRUE(call.Open().has_opened());
    call.Write("/", kSavedName);
    const SaveCall::Written written = call.Finish();
    parts.push_back(*ParseOwnerPart(written.part));
    if (rank == 0) description = *ParseDescription(written.description);
  }
  description.step = 1;
  const auto manifest = MakeManifest(description, std::move(parts));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_EQ(CommitCheckpoint(*root_->OpenDirectory(kSavedName).value(), *manifest),
            absl::OkStatus());

  const ModelLayout layout =
      LayOutModel(ModelTensorsOf(description.parameters), kShardBytes).value();
  const auto model = CreateModel(*root_, "model", layout).value();
  std::vector<std::unique_ptr<SaveCall>> calls;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    calls.push_back(std::make_unique<SaveCall>(*stub_));
    ASSERT_TRUE(calls.back()->Prepare(rank, 7, "", 0, /*model=*/true).has_prepared());
  }
  for (const auto& call : calls) EXPECT_EQ(call->Open().opened().step(), 1);
  rig_.GiveGradients(2);
  for (const auto& stepped : rig_.Step()) EXPECT_EQ(stepped.status(), absl::OkStatus());
  int64_t bytes = 0;
  for (const auto& call : calls) {
    call->WriteModel("/", model.name, layout);
    const SaveCall::Written written = call->Finish();
    ASSERT_TRUE(written.status.ok()) << written.status.error_message();
    EXPECT_GT(written.model_bytes, 0);
    bytes += written.model_bytes;
  }
  EXPECT_EQ(bytes, layout.tensor_bytes);
  ASSERT_EQ(CommitModel(*root_, model, "model", layout), absl::OkStatus());

  ASSERT_EQ(root_->CreateDirectory("expected"), absl::OkStatus());
  const auto reader = CheckpointReader::Open(root_->OpenDirectory(kSavedName).value()).value();
  ASSERT_EQ(ExportModel(*reader, *root_->OpenDirectory("expected").value(), kShardBytes),
            absl::OkStatus());
  EXPECT_GT(layout.files.size(), 1u);
  EXPECT_EQ(FilesIn(system_, "/model"), FilesIn(system_, "/expected"));
}

TEST_F(ShardSavingServiceTest, AModelThatIsNotLaidOutAlike_OrNotThere_IsRefused) {
  SaveCall described(*stub_);
  ASSERT_TRUE(described.Prepare(0, 1).has_prepared());
  ASSERT_TRUE(described.Open().has_opened());
  described.Write("/", kSavedName);
  const auto description = ParseDescription(described.Finish().description).value();
  const auto tensors = ModelTensorsOf(description.parameters);
  const ModelLayout layout = LayOutModel(tensors, kShardBytes).value();
  const auto model = CreateModel(*root_, "model", layout).value();
  struct Place {
    std::string directory;
    std::string name;
    ModelLayout layout;
    grpc::StatusCode code;
  };
  const std::string missing = absl::StrCat("x", model.name);
  uint64_t snapshot = 10;
  for (const Place& place :
       {Place{"/", "model", layout, grpc::StatusCode::INVALID_ARGUMENT},
        Place{"/", absl::StrCat("../", model.name), layout, grpc::StatusCode::INVALID_ARGUMENT},
        Place{"dir", model.name, layout, grpc::StatusCode::INVALID_ARGUMENT},
        Place{"/", missing, layout, grpc::StatusCode::NOT_FOUND},
        Place{"/", model.name, LayOutModel(tensors, 1).value(),
              grpc::StatusCode::FAILED_PRECONDITION}}) {
    SaveCall call(*stub_);
    ASSERT_TRUE(call.Prepare(0, ++snapshot, "", 0, /*model=*/true).has_prepared());
    ASSERT_TRUE(call.Open().has_opened());
    call.WriteModel(place.directory, place.name, place.layout);
    EXPECT_EQ(call.Code(), place.code) << place.directory << " " << place.name;
  }
  // What it was not prepared for.
  const auto call = Opened(0, ++snapshot);
  call->WriteModel("/", model.name, layout);
  EXPECT_EQ(call->Code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ShardSavingServiceTest, ARankThatWaitsForAStepsVotes_OpensWithTheOtherThatHasOpened) {
  SaveCall between(*stub_);
  SaveCall waiting(*stub_);
  ASSERT_TRUE(between.Prepare(0, 7).has_prepared());
  ASSERT_TRUE(waiting.Prepare(1, 7).has_prepared());
  EXPECT_EQ(between.Open().opened().step(), 1);
  rig_.GiveGradients(2);
  const auto step = [this](Rank rank) {
    return rig_.owner(rank).Step(rig_.InputOf(rank)).status();
  };
  std::thread steps([&] { EXPECT_EQ(step(1), absl::OkStatus()); });
  const auto has_voted = [this] {
    return rig_.owner(1).view().Activity().phase == RankPhase::kCommit;
  };
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (!has_voted() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(has_voted());
  waiting.BeginOpening();
  waiting.TellOpened(1);
  EXPECT_EQ(waiting.Answer().opened().step(), 1);
  EXPECT_EQ(step(0), absl::OkStatus());
  steps.join();
  between.TellOpened(1);  // too late, once
  for (SaveCall* const call : {&between, &waiting}) call->Write("/", kSavedName);
  EXPECT_EQ(between.Code(), grpc::StatusCode::OK);
  EXPECT_EQ(waiting.Code(), grpc::StatusCode::OK);
}

TEST_F(ShardSavingServiceTest, MessagesOutOfOrder_AreRefused) {
  SaveCall call(*stub_);
  EXPECT_EQ(call.Open().response_case(), v1::SaveShardResponse::RESPONSE_NOT_SET);
  EXPECT_EQ(call.Code(), grpc::StatusCode::INVALID_ARGUMENT);
  SaveCall twice(*stub_);
  EXPECT_TRUE(twice.Prepare(0, 7).has_prepared());
  twice.Prepare(0, 7);
  EXPECT_EQ(twice.Code(), grpc::StatusCode::INVALID_ARGUMENT);
  SaveCall early(*stub_);
  EXPECT_TRUE(early.Prepare(0, 8).has_prepared());
  early.TellOpened(1);
  EXPECT_EQ(early.Code(), grpc::StatusCode::INVALID_ARGUMENT);
  const auto often = Opened(0, 9);
  for (int i = 0; i < 2; ++i) often->TellOpened(1);
  EXPECT_EQ(often->Code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ShardSavingServiceTest, WhatThereIsNot_IsRefused) {
  const auto prepared = [&](Rank rank, uint64_t snapshot, const std::string& job) {
    SaveCall call(*stub_);
    call.Prepare(rank, snapshot, job);
    return call.Code();
  };
  EXPECT_EQ(prepared(0, 0, ""), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(prepared(5, 7, ""), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(prepared(0, 7, "another"), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ShardSavingServiceTest, PlacesThatAPeerMayNotName_AreRefused) {
  struct Place {
    std::string directory;
    std::string name;
    grpc::StatusCode code;
  };
  uint64_t snapshot = 0;
  for (const Place& place : {Place{"/../etc", kSavedName, grpc::StatusCode::INVALID_ARGUMENT},
                             Place{"dir", kSavedName, grpc::StatusCode::INVALID_ARGUMENT},
                             Place{"/", "..", grpc::StatusCode::INVALID_ARGUMENT},
                             Place{"/", "step-1/..", grpc::StatusCode::INVALID_ARGUMENT},
                             Place{"/", "step-000000000002", grpc::StatusCode::NOT_FOUND},
                             Place{"/nothing", kSavedName, grpc::StatusCode::NOT_FOUND}}) {
    const auto call = Opened(0, ++snapshot);
    call->Write(place.directory, place.name);
    EXPECT_EQ(call->Code(), place.code) << place.directory << " " << place.name;
  }
}

TEST_F(ShardSavingServiceTest, AFileThatIsThereAlready_IsNotReplaced) {
  auto call = Opened(0, 1);
  call->Write("/", kSavedName);
  ASSERT_TRUE(call->Finish().status.ok());
  call = Opened(0, 2);
  call->Write("/", kSavedName);
  EXPECT_EQ(call->Code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(system_.OpenDirectory(absl::StrCat("/", kSavedName))
                  .value()
                  ->OpenFile(OwnerFileName(0))
                  .ok());
}

TEST_F(ShardSavingServiceTest, AFullDisk_IsSaidAndNothingStays) {
  system_.SetCapacity(100);
  const auto call = Opened(0, 1);
  call->Write("/", kSavedName);
  const grpc::Status status = call->Finish().status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("rank 0"));
  EXPECT_TRUE(root_->OpenDirectory(kSavedName).value()->List()->empty());
}

}  // namespace
}  // namespace optshard::testing

// What a coordinator has an owner do, over real gRPC, at two owners that have made a step.
#include "server/shard/saving/shard_saving_service.h"

#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "common/cancellation.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/server_rpc.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/commit.h"
#include "server/checkpoint/manifest_json.h"
#include "server/checkpoint/model_export.h"
#include "server/checkpoint/model_layout.h"
#include "server/checkpoint/state_file/checkpoint_export.h"
#include "server/shard/saving/shard_save.h"
#include "server/shard/saving/writer_slots.h"
#include "tests/server/shard/owner_rig.h"
#include "tests/testing/fake_file_system.h"

namespace optshard {
namespace {

using testing::FakeFileSystem;
using ::testing::HasSubstr;
using testing::OwnerRig;

constexpr int kRanks = 2;
constexpr int64_t kShardBytes = 100;
constexpr char kName[] = "step-000000000001";

// One call, as the coordinator makes it.
class SaveCall {
 public:
  explicit SaveCall(v1::ShardSaving::Stub& stub) {
    context_.set_deadline(DeadlineAfter(absl::Seconds(20)));
    stream_ = stub.SaveShard(&context_);
  }

  v1::SaveShardResponse Prepare(Rank rank, uint64_t snapshot, const std::string& job = "",
                                int64_t silence_ms = 0, bool model = false) {
    v1::SaveShardRequest request;
    request.mutable_prepare()->set_model(model);
    request.mutable_prepare()->set_silence_ms(silence_ms);
    request.mutable_prepare()->set_rank(rank);
    request.mutable_prepare()->set_snapshot_id(snapshot);
    request.mutable_prepare()->set_job(job);
    return Ask(request);
  }
  v1::SaveShardResponse Open() {
    v1::SaveShardRequest request;
    request.mutable_open()->set_patience_ms(10'000);
    return Ask(request);
  }
  void Write(const std::string& directory, const std::string& name) {
    v1::SaveShardRequest request;
    request.mutable_write()->set_directory(directory);
    request.mutable_write()->set_name(name);
    stream_->Write(request);
  }
  void WriteModel(const std::string& directory, const std::string& name,
                  const ModelLayout& layout) {
    v1::SaveShardRequest request;
    request.mutable_write_model()->set_directory(directory);
    request.mutable_write_model()->set_name(name);
    request.mutable_write_model()->set_shard_bytes(kShardBytes);
    request.mutable_write_model()->set_layout_checksum(layout.checksum());
    stream_->Write(request);
  }
  v1::SaveShardResponse Ask(const v1::SaveShardRequest& request) {
    Send(request);
    return Answer();
  }
  void Send(const v1::SaveShardRequest& request) { stream_->Write(request); }
  v1::SaveShardResponse Answer() {
    v1::SaveShardResponse response;
    stream_->Read(&response);
    return response;
  }

  struct Written {
    grpc::Status status;
    std::string part;
    std::string description;
    int64_t model_bytes = 0;
  };
  Written Finish() {
    Written written;
    v1::SaveShardResponse response;
    while (stream_->Read(&response)) {
      written.part += response.written().part_json();
      written.description += response.written().description_json();
      written.model_bytes += response.model_written().bytes();
    }
    written.status = stream_->Finish();
    return written;
  }
  grpc::StatusCode Code() { return Finish().status.error_code(); }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SaveShardRequest, v1::SaveShardResponse>> stream_;
};

class ShardSavingServiceTest : public ::testing::Test {
 protected:
  ShardSavingServiceTest() : rig_(RigOptions()) {
    for (const absl::Status& started : rig_.Start()) EXPECT_EQ(started, absl::OkStatus());
    rig_.GiveGradients(1);
    for (const auto& stepped : rig_.Step()) EXPECT_EQ(stepped.status(), absl::OkStatus());
    rig_.TellParameters();
    for (Rank rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(views_.Register("default", rank, &rig_.owner(rank).view()), absl::OkStatus());
    }
    Serve(ShardSavingService::Options());
    root_ = system_.OpenDirectory("/").value();
    EXPECT_EQ(root_->CreateDirectory(kName), absl::OkStatus());
  }
  ~ShardSavingServiceTest() override {
    server_->Shutdown();
    for (Rank rank = 0; rank < kRanks; ++rank) views_.Unregister("default", rank);
    rig_.Stop();
  }

  void Serve(ShardSavingService::Options options) {
    if (server_ != nullptr) server_->Shutdown();
    options.views = &views_;
    options.files = &system_;
    service_ = std::make_unique<ShardSavingService>(options);
    auto listening = StartServer("127.0.0.1:0", {service_.get()});
    server_ = std::move(listening->server);
    stub_ = v1::ShardSaving::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", listening->port)));
  }

  static OwnerRig::Options RigOptions() {
    OwnerRig::Options options = OwnerRig::MixedOptions(kRanks);
    options.owner.spec.policy = PartitionPolicy::kBalanced;
    return options;
  }

  // Of a save without the service.
  ShardSave::Options SaveOptions() {
    ShardSave::Options options;
    options.views = &views_;
    options.files = &system_;
    options.writers = &writers_;
    options.cancellation = &cancellation_;
    return options;
  }

  // A call that has opened its snapshot.
  std::unique_ptr<SaveCall> Opened(Rank rank, uint64_t snapshot) {
    auto call = std::make_unique<SaveCall>(*stub_);
    EXPECT_TRUE(call->Prepare(rank, snapshot).has_prepared());
    EXPECT_EQ(call->Open().opened().step(), 1);
    return call;
  }

  std::map<std::string, std::string> FilesIn(const std::string& path) {
    std::map<std::string, std::string> files;
    const auto directory = system_.OpenDirectory(path).value();
    const auto entries = directory->List().value();
    for (const DirectoryEntry& entry : entries) {
      std::string& bytes = files[entry.name];
      bytes.resize(static_cast<size_t>(entry.bytes));
      EXPECT_EQ(directory->OpenFile(entry.name).value()->ReadAt(0, absl::MakeSpan(bytes)).value(),
                bytes.size());
    }
    return files;
  }

  OwnerRig rig_;
  ShardViewRegistry views_;
  FakeFileSystem system_;
  WriterSlots writers_{1};
  Cancellation cancellation_;
  std::unique_ptr<Directory> root_;
  std::unique_ptr<ShardSavingService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ShardSaving::Stub> stub_;
};

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
    calls[rank]->Write("/", kName);
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
  EXPECT_EQ(CommitCheckpoint(*root_->OpenDirectory(kName).value(), *manifest), absl::OkStatus());
}

TEST_F(ShardSavingServiceTest, AllOwners_WriteAModelOfOneStepWhileStepsGoOn) {
  // What a checkpoint of the same step gives.
  std::vector<OwnerPart> parts;
  CheckpointManifest description;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    SaveCall call(*stub_);
    ASSERT_TRUE(call.Prepare(rank, 1 + rank).has_prepared());
    ASSERT_TRUE(call.Open().has_opened());
    call.Write("/", kName);
    const SaveCall::Written written = call.Finish();
    parts.push_back(*ParseOwnerPart(written.part));
    if (rank == 0) description = *ParseDescription(written.description);
  }
  description.step = 1;
  const auto manifest = MakeManifest(description, std::move(parts));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_EQ(CommitCheckpoint(*root_->OpenDirectory(kName).value(), *manifest), absl::OkStatus());

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
  const auto reader = CheckpointReader::Open(root_->OpenDirectory(kName).value()).value();
  ASSERT_EQ(ExportModel(*reader, *root_->OpenDirectory("expected").value(), kShardBytes),
            absl::OkStatus());
  EXPECT_GT(layout.files.size(), 1u);
  EXPECT_EQ(FilesIn("/model"), FilesIn("/expected"));
}

TEST_F(ShardSavingServiceTest, AModelThatIsNotLaidOutAlike_OrNotThere_IsRefused) {
  SaveCall described(*stub_);
  ASSERT_TRUE(described.Prepare(0, 1).has_prepared());
  ASSERT_TRUE(described.Open().has_opened());
  described.Write("/", kName);
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

TEST_F(ShardSavingServiceTest, MessagesOutOfOrder_AreRefused) {
  SaveCall call(*stub_);
  EXPECT_EQ(call.Open().response_case(), v1::SaveShardResponse::RESPONSE_NOT_SET);
  EXPECT_EQ(call.Code(), grpc::StatusCode::INVALID_ARGUMENT);
  SaveCall twice(*stub_);
  EXPECT_TRUE(twice.Prepare(0, 7).has_prepared());
  twice.Prepare(0, 7);
  EXPECT_EQ(twice.Code(), grpc::StatusCode::INVALID_ARGUMENT);
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
  for (const Place& place : {Place{"/../etc", kName, grpc::StatusCode::INVALID_ARGUMENT},
                             Place{"dir", kName, grpc::StatusCode::INVALID_ARGUMENT},
                             Place{"/", "..", grpc::StatusCode::INVALID_ARGUMENT},
                             Place{"/", "step-1/..", grpc::StatusCode::INVALID_ARGUMENT},
                             Place{"/", "step-000000000002", grpc::StatusCode::NOT_FOUND},
                             Place{"/nothing", kName, grpc::StatusCode::NOT_FOUND}}) {
    const auto call = Opened(0, ++snapshot);
    call->Write(place.directory, place.name);
    EXPECT_EQ(call->Code(), place.code) << place.directory << " " << place.name;
  }
}

TEST_F(ShardSavingServiceTest, AFileThatIsThereAlready_IsNotReplaced) {
  auto call = Opened(0, 1);
  call->Write("/", kName);
  ASSERT_TRUE(call->Finish().status.ok());
  call = Opened(0, 2);
  call->Write("/", kName);
  EXPECT_EQ(call->Code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(
      system_.OpenDirectory(absl::StrCat("/", kName)).value()->OpenFile(OwnerFileName(0)).ok());
}

TEST_F(ShardSavingServiceTest, AFullDisk_IsSaidAndNothingStays) {
  system_.SetCapacity(100);
  const auto call = Opened(0, 1);
  call->Write("/", kName);
  const grpc::Status status = call->Finish().status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("rank 0"));
  EXPECT_TRUE(root_->OpenDirectory(kName).value()->List()->empty());
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
  EXPECT_TRUE(root_->OpenDirectory(kName).value()->List()->empty());
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
  const auto written = save.Write("/", kName, [](int64_t, int64_t) {});
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
  SaveCall first(*stub_);
  ASSERT_TRUE(first.Prepare(0, 7).has_prepared());
  SaveCall second(*stub_);
  second.Prepare(0, 8);
  EXPECT_EQ(second.Code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
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
  SaveCall first(*stub_);
  ASSERT_TRUE(first.Prepare(0, 7).has_prepared());
  SaveCall second(*stub_);
  second.Prepare(0, 8);
  EXPECT_EQ(second.Code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace optshard

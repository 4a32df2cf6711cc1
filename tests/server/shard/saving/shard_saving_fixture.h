// Two owners that have made a step, and the service by which a coordinator has them save, over
// gRPC.
#ifndef OPTSHARD_TESTS_SERVER_SHARD_SAVING_SHARD_SAVING_FIXTURE_H_
#define OPTSHARD_TESTS_SERVER_SHARD_SAVING_SHARD_SAVING_FIXTURE_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/cancellation.h"
#include "common/gradient_mode.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/server_rpc.h"
#include "gtest/gtest.h"
#include "server/checkpoint/model_layout.h"
#include "server/shard/saving/shard_save.h"
#include "server/shard/saving/shard_saving_service.h"
#include "server/shard/saving/writer_slots.h"
#include "tests/server/shard/owner_rig.h"
#include "tests/testing/fake_file_system.h"

namespace optshard::testing {

constexpr int kRanks = 2;
constexpr int64_t kShardBytes = 100;
constexpr char kSavedName[] = "step-000000000001";

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
    BeginOpening();
    return Answer();
  }
  void BeginOpening() {
    v1::SaveShardRequest request;
    request.mutable_open()->set_patience_ms(10'000);
    Send(request);
  }
  void TellOpened(StepNumber step) {
    v1::SaveShardRequest request;
    request.mutable_opened_elsewhere()->set_step(step);
    request.mutable_opened_elsewhere()->set_generation(1);
    Send(request);
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
    EXPECT_EQ(root_->CreateDirectory(kSavedName), absl::OkStatus());
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
    // Nothing is reduced before the votes.
    options.owner.spec.gradient_mode = GradientMode::kAveraged;
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

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_SHARD_SAVING_SHARD_SAVING_FIXTURE_H_

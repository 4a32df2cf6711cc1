// The service over a loopback server, by its real stub.
#ifndef OPTSHARD_TESTS_SERVER_SHARD_INSPECTION_SHARD_OWNER_SERVICE_FIXTURE_H_
#define OPTSHARD_TESTS_SERVER_SHARD_INSPECTION_SHARD_OWNER_SERVICE_FIXTURE_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel_rpc.h"
#include "gtest/gtest.h"
#include "proto/optshard/v1/shard_owner.grpc.pb.h"
#include "server/shard/inspection/shard_owner_server.h"
#include "tests/server/shard/inspection/fake_shard_view.h"

namespace optshard::testing {

class ShardOwnerServiceTest : public ::testing::Test {
 protected:
  ShardOwnerServiceTest() {
    absl::StatusOr<std::unique_ptr<ShardOwnerServer>> server =
        ShardOwnerServer::Start(ShardOwnerServer::Options(), &views_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    stub_ = v1::ShardOwner::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", server_->port())));
    view_.description.member = {"job", "default", 1, 42};
    view_.description.world_size = 2;
    view_.description.generation = 3;
    view_.description.groups = {{"adam"}};
    view_.description.gradient_mode = GradientMode::kReduce;
    view_.description.policy = PartitionPolicy::kBalanced;
    view_.description.progress = {12, StepOutcome::kIdle};
    view_.description.owned_parameters = 2;
    view_.description.state_bytes = 5 << 20;
    AddSlice("fc.weight", {10, 64}, 0, 640);
    AddSlice("fc.bias", {100000}, 50000, 50000);
  }

  // In reverse: the server stops before the view goes.
  ~ShardOwnerServiceTest() override { server_->Stop(absl::Seconds(1)); }

  void AddSlice(const std::string& name, std::vector<int64_t> shape, int64_t offset,
                int64_t elements) {
    OwnedSlice slice;
    slice.parameter = static_cast<int32_t>(view_.slices.size());
    slice.name = name;
    slice.shape = std::move(shape);
    slice.offset_elements = offset;
    slice.elements = elements;
    slice.step = 12;
    slice.slots = {"exp_avg", "exp_avg_sq"};
    slice.state_bytes = elements * 8;
    view_.slices.push_back(slice);
  }

  void Register() { ASSERT_TRUE(views_.Register("default", 1, &view_).ok()); }

  std::unique_ptr<grpc::ClientContext> Context() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(DeadlineAfter(absl::Seconds(20)));
    return context;
  }

  grpc::Status Describe(const std::string& optimizer, v1::ShardDescription* response) {
    v1::DescribeShardRequest request;
    request.set_optimizer(optimizer);
    return stub_->DescribeShard(Context().get(), request, response);
  }

  grpc::Status List(int page_size, const std::string& token, v1::ListParametersResponse* response) {
    v1::ListParametersRequest request;
    request.set_page_size(page_size);
    request.set_page_token(token);
    response->Clear();
    return stub_->ListParameters(Context().get(), request, response);
  }

  grpc::Status Read(const v1::ReadSlotRequest& request, std::vector<v1::SlotChunk>* chunks) {
    const auto context = Context();
    const auto reader = stub_->ReadSlot(context.get(), request);
    v1::SlotChunk chunk;
    while (reader->Read(&chunk)) chunks->push_back(chunk);
    return reader->Finish();
  }

  // All values of a slot that go into one chunk.
  v1::SlotChunk ReadOneChunk(const v1::ReadSlotRequest& request) {
    std::vector<v1::SlotChunk> chunks;
    const grpc::Status status = Read(request, &chunks);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(chunks.size(), 1);
    return chunks.empty() ? v1::SlotChunk() : chunks[0];
  }

  // `json` may be null.
  grpc::Status Timeline(const v1::GetTimelineRequest& request, std::string* json) {
    const auto context = Context();
    const auto reader = stub_->GetTimeline(context.get(), request);
    v1::TimelineChunk chunk;
    while (reader->Read(&chunk)) {
      if (json != nullptr) *json += chunk.json();
    }
    return reader->Finish();
  }

  FakeShardView view_;
  ShardViewRegistry views_;
  std::unique_ptr<ShardOwnerServer> server_;
  std::unique_ptr<v1::ShardOwner::Stub> stub_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_SHARD_INSPECTION_SHARD_OWNER_SERVICE_FIXTURE_H_

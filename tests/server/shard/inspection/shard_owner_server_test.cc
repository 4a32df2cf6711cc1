// The service over a loopback server, by its real stub.

#include "server/shard/inspection/shard_owner_server.h"

#include <grpcpp/grpcpp.h>

#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/rpc/channel_rpc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/optshard/v1/shard_owner.grpc.pb.h"
#include "server/shard/inspection/shard_owner_rpc.h"
#include "tests/server/shard/inspection/fake_shard_view.h"

namespace optshard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

TEST_F(ShardOwnerServiceTest, NoViewYet_IsUnavailable) {
  v1::ShardDescription description;
  grpc::Status status = Describe("default", &description);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("no rank is hosted here yet"));
  views_.AddRank(1);
  status = Describe("default", &description);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("\"default\" of rank 1 is not served here"));
}

TEST_F(ShardOwnerServiceTest, UnregisteredView_IsUnavailableAgain) {
  Register();
  v1::ShardDescription description;
  ASSERT_TRUE(Describe("", &description).ok());
  views_.Unregister("default", 1);
  EXPECT_EQ(Describe("", &description).error_code(), grpc::StatusCode::UNAVAILABLE);
  Register();
  EXPECT_TRUE(Describe("default", &description).ok());
}

TEST_F(ShardOwnerServiceTest, SeveralOptimizers_MustBeNamed) {
  Register();
  FakeShardView critic;
  critic.description.member.optimizer = "critic";
  ASSERT_TRUE(views_.Register("critic", 1, &critic).ok());
  EXPECT_EQ(views_.Register("critic", 1, &critic).code(), absl::StatusCode::kAlreadyExists);
  v1::ShardDescription description;
  const grpc::Status unnamed = Describe("", &description);
  EXPECT_EQ(unnamed.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(unnamed.error_message(), HasSubstr("\"critic\", \"default\""));
  ASSERT_TRUE(Describe("critic", &description).ok());
  EXPECT_EQ(description.optimizer(), "critic");
  views_.Unregister("critic", 1);
}

TEST_F(ShardOwnerServiceTest, SeveralRanks_MustBeNamedInEveryCall) {
  Register();
  FakeShardView other;
  other.description.member = {"job", "default", 3, 1};
  other.slices = {view_.slices[1]};
  ASSERT_TRUE(views_.Register("default", 3, &other).ok());
  v1::ShardDescription description;
  grpc::Status status = Describe("", &description);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("set `rank` to one of: 1, 3"));
  v1::ListParametersResponse page;
  EXPECT_EQ(List(0, "", &page).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::ReadSlotRequest read;
  read.set_slot("exp_avg");
  std::vector<v1::SlotChunk> chunks;
  EXPECT_EQ(Read(read, &chunks).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Timeline(v1::GetTimelineRequest(), nullptr).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);

  for (const Rank rank : {1, 3}) {
    v1::DescribeShardRequest describe;
    describe.set_rank(rank);
    ASSERT_TRUE(stub_->DescribeShard(Context().get(), describe, &description).ok());
    EXPECT_EQ(description.rank(), rank);
    v1::ListParametersRequest list;
    list.set_rank(rank);
    ASSERT_TRUE(stub_->ListParameters(Context().get(), list, &page).ok());
    EXPECT_EQ(page.parameters_size(), rank == 1 ? 2 : 1);
    read.set_rank(rank);
    read.set_name("fc.bias");
    EXPECT_TRUE(Read(read, &chunks).ok());
    read.set_name("fc.weight");
    EXPECT_EQ(Read(read, &chunks).ok(), rank == 1);
    v1::GetTimelineRequest timeline;
    timeline.set_rank(rank);
    std::string json;
    EXPECT_TRUE(Timeline(timeline, &json).ok());
    EXPECT_THAT(json, HasSubstr(absl::StrCat("rank ", rank, " of job/default")));
  }
  views_.Unregister("default", 3);
}

TEST_F(ShardOwnerServiceTest, RankThatIsNotHosted_IsNotFoundListingTheHosted) {
  Register();
  views_.AddRank(2);
  v1::DescribeShardRequest request;
  v1::ShardDescription description;
  for (const Rank rank : {0, -1, 7}) {
    request.set_rank(rank);
    const grpc::Status status = stub_->DescribeShard(Context().get(), request, &description);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_THAT(status.error_message(), HasSubstr("the hosted ranks are: 1, 2"));
  }
  request.set_rank(2);
  EXPECT_EQ(stub_->DescribeShard(Context().get(), request, &description).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ShardOwnerServiceTest, Describe_SaysWhoAndHowFar) {
  view_.description.failure = absl::UnavailableError("rank 0 is lost");
  view_.description.groups = {{"sgd"}, {"adam"}};
  view_.description.groups[1].hyperparameters.Set("lr", 0.25);
  Register();
  v1::ShardDescription description;
  ASSERT_TRUE(Describe("default", &description).ok());
  EXPECT_THAT(
      description.summary(),
      AllOf(HasSubstr("rank 1 of 2 of job/default: sgd+adam, 2 parameters"),
            HasSubstr("5.0 MiB of state"), HasSubstr("step 12"), HasSubstr("rank 0 is lost")));
  EXPECT_EQ(description.rank(), 1);
  EXPECT_EQ(description.incarnation(), 42);
  EXPECT_EQ(description.generation(), 3);
  EXPECT_EQ(description.policy(), v1::PARTITION_POLICY_BALANCED);
  EXPECT_EQ(description.progress().finished_step(), 12);
  EXPECT_EQ(description.progress().outcome(), v1::STEP_OUTCOME_IDLE);
  EXPECT_EQ(description.failure().message(), "rank 0 is lost");
  EXPECT_DOUBLE_EQ(description.state_gib(), 5.0 / 1024);
  EXPECT_EQ(description.rules(), "sgd+adam");
  EXPECT_EQ(description.groups(0).rule(), "sgd");
  EXPECT_EQ(description.groups(1).rule(), "adam");
  EXPECT_EQ(description.groups(1).hyperparameters(), "lr=0.25");
}

TEST_F(ShardOwnerServiceTest, List_SummarisesEachParameter) {
  Register();
  v1::ListParametersResponse page;
  ASSERT_TRUE(List(0, "", &page).ok());
  ASSERT_EQ(page.parameters_size(), 2);
  EXPECT_EQ(page.parameters(0).summary(),
            "0 fc.weight float32 [10, 64] step 12: exp_avg, exp_avg_sq (5.0 KiB)");
  EXPECT_EQ(page.parameters(1).summary(),
            "1 fc.bias float32 [100000] elements [50000, 100000) step 12: exp_avg, exp_avg_sq "
            "(390.6 KiB)");
  EXPECT_EQ(page.next_page_token(), "");
}

TEST_F(ShardOwnerServiceTest, List_ParameterAndGradientOfTwoTypes_HasBoth) {
  view_.slices[0].dtype = DType::kBFloat16;
  view_.slices[1].gradient_dtype = DType::kFloat64;
  Register();
  v1::ListParametersResponse page;
  ASSERT_TRUE(List(0, "", &page).ok());
  EXPECT_EQ(page.parameters(0).dtype(), v1::DTYPE_BFLOAT16);
  EXPECT_EQ(page.parameters(0).gradient_dtype(), v1::DTYPE_FLOAT32);
  EXPECT_EQ(page.parameters(1).gradient_dtype(), v1::DTYPE_FLOAT64);
}

TEST_F(ShardOwnerServiceTest, LongNameOfManyByteCharacters_IsCutBetweenTwo) {
  std::string name = "x";
  for (int i = 0; i < 200; ++i) name += "\xc3\xa4";
  AddSlice(name, {4}, 0, 4);
  Register();
  v1::ListParametersResponse page;
  const grpc::Status listed = List(0, "", &page);
  ASSERT_TRUE(listed.ok()) << listed.error_message();
  EXPECT_EQ(page.parameters(2).name(), name);
  EXPECT_THAT(page.parameters(2).summary(), HasSubstr(name.substr(0, 199) + " float32"));
}

TEST_F(ShardOwnerServiceTest, ErrorWithALongNameOfManyByteCharacters_StaysThatError) {
  Register();
  v1::ReadSlotRequest request;
  for (int i = 0; i < 5000; ++i) request.mutable_name()->append("\xc3\xa4");
  std::vector<v1::SlotChunk> chunks;
  const grpc::Status status = Read(request, &chunks);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << status.error_message();
}

TEST_F(ShardOwnerServiceTest, ListOfManyParameters_ComesInPagesFarUnderTheLimit) {
  for (int i = 0; i < 3000; ++i) AddSlice(absl::StrCat(std::string(3000, 'x'), i), {4}, 0, 4);
  Register();
  std::vector<int> sizes;
  size_t seen = 0;
  v1::ListParametersResponse page;
  do {
    const std::string token = page.next_page_token();
    ASSERT_TRUE(List(100000, token, &page).ok());
    EXPECT_LT(page.ByteSizeLong(), 2u << 20);
    for (const v1::OwnedParameter& parameter : page.parameters()) {
      ASSERT_EQ(parameter.parameter(), static_cast<int>(seen++));
    }
    sizes.push_back(page.parameters_size());
  } while (!page.next_page_token().empty());
  EXPECT_EQ(seen, view_.slices.size());
  EXPECT_GT(sizes.size(), 8);

  ASSERT_TRUE(List(0, "", &page).ok());
  EXPECT_EQ(page.parameters_size(), 100);
}

TEST_F(ShardOwnerServiceTest, ForeignPageToken_IsRefused) {
  Register();
  v1::ListParametersResponse page;
  for (const std::string token :
       {"abc", "-1", "1 ", "01", "2", "9223372036854775807", "99999999999999999999"}) {
    EXPECT_EQ(List(0, token, &page).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << token;
  }
  EXPECT_EQ(List(-1, "", &page).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ShardOwnerServiceTest, ReadSlot_StreamsAllThatIsOwnedInOrder) {
  AddSlice("large", {200000}, 0, 200000);
  Register();
  v1::ReadSlotRequest request;
  request.set_name("large");
  request.set_slot("exp_avg");
  std::vector<v1::SlotChunk> chunks;
  ASSERT_TRUE(Read(request, &chunks).ok());
  int64_t next = 0;
  for (const v1::SlotChunk& chunk : chunks) {
    EXPECT_EQ(chunk.offset_elements(), next);
    EXPECT_EQ(chunk.step(), 1);
    EXPECT_LE(chunk.values_size(), 65536);
    for (const float value : chunk.values()) ASSERT_EQ(value, static_cast<float>(next++));
  }
  EXPECT_EQ(next, 200000);
  EXPECT_EQ(chunks.size(), 4);
  EXPECT_EQ(chunks[0].summary(), "exp_avg of large, float32, elements [0, 65536), step 1");

  // A part, by index; and from the slice's beginning on.
  request.clear_name();
  request.set_parameter(1);
  request.set_offset_elements(50001);
  request.set_elements(2);
  chunks.clear();
  ASSERT_TRUE(Read(request, &chunks).ok());
  ASSERT_EQ(chunks.size(), 1);
  EXPECT_THAT(chunks[0].values(), ::testing::ElementsAre(50001, 50002));
}

TEST_F(ShardOwnerServiceTest, ReadOfAFloat64Slot_GivesAllBits) {
  view_.slot_format = StateFormat::kFloat64;
  view_.read = [](int64_t, absl::Span<double> out) -> absl::StatusOr<StepNumber> {
    for (double& value : out) value = 0.1;
    return StepNumber{1};
  };
  AddSlice("large", {3}, 0, 3);
  Register();
  v1::ReadSlotRequest request;
  request.set_name("large");
  request.set_slot("exp_avg");
  std::vector<v1::SlotChunk> chunks;
  ASSERT_TRUE(Read(request, &chunks).ok());
  ASSERT_EQ(chunks.size(), 1);
  EXPECT_EQ(chunks[0].dtype(), v1::DTYPE_FLOAT64);
  EXPECT_EQ(chunks[0].values_size(), 0);
  EXPECT_THAT(chunks[0].float64_values(), ::testing::ElementsAre(0.1, 0.1, 0.1));
}

TEST_F(ShardOwnerServiceTest, ReadOfAScalarSlot_IsOneNumber) {
  AddSlice("large", {3}, 0, 3);
  view_.slices.back().slot_shapes = {{"mu_product", {}}, {"step", {}}};
  Register();
  v1::ReadSlotRequest request;
  request.set_name("large");
  for (const std::string slot : {"mu_product", "step"}) {
    request.set_slot(slot);
    std::vector<v1::SlotChunk> chunks;
    ASSERT_TRUE(Read(request, &chunks).ok());
    ASSERT_EQ(chunks.size(), 1);
    EXPECT_EQ(chunks[0].values_size(), 1);
  }
}

TEST_F(ShardOwnerServiceTest, SlotWithAShapeOfItsOwn_IsListedAndReadInIt) {
  AddSlice("matrix", {10, 64}, 0, 640);
  view_.slices.back().slots = {"row_var", "step"};
  view_.slices.back().slot_shapes = {{"row_var", {10, 1}}, {"step", {}}};
  const v1::OwnedParameter listed = ToProto(view_.slices.back());
  EXPECT_THAT(listed.summary(), ::testing::HasSubstr(": row_var [10, 1], step ("));
  ASSERT_EQ(listed.slot_shapes_size(), 1);
  EXPECT_EQ(listed.slot_shapes(0).slot(), "row_var");
  EXPECT_THAT(listed.slot_shapes(0).shape(), ::testing::ElementsAre(10, 1));
  Register();
  v1::ReadSlotRequest request;
  request.set_name("matrix");
  request.set_slot("row_var");
  request.set_offset_elements(3);
  std::vector<v1::SlotChunk> chunks;
  ASSERT_TRUE(Read(request, &chunks).ok());
  ASSERT_EQ(chunks.size(), 1);
  EXPECT_EQ(chunks[0].values_size(), 7);
}

TEST_F(ShardOwnerServiceTest, ReadOfAnEmptyParameter_IsOneEmptyChunk) {
  AddSlice("empty", {0}, 0, 0);
  Register();
  v1::ReadSlotRequest request;
  request.set_name("empty");
  request.set_slot("exp_avg");
  std::vector<v1::SlotChunk> chunks;
  ASSERT_TRUE(Read(request, &chunks).ok());
  ASSERT_EQ(chunks.size(), 1);
  EXPECT_EQ(chunks[0].values_size(), 0);
  EXPECT_EQ(chunks[0].step(), 1);
}

TEST_F(ShardOwnerServiceTest, StepBetweenTwoChunks_Aborts) {
  AddSlice("large", {200000}, 0, 200000);
  view_.read = [](int64_t offset, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    return offset < 100000 ? 7 : 8;
  };
  Register();
  v1::ReadSlotRequest request;
  request.set_name("large");
  request.set_slot("exp_avg");
  std::vector<v1::SlotChunk> chunks;
  const grpc::Status status = Read(request, &chunks);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("step 8 came while step 7 was read"));
  EXPECT_EQ(chunks.size(), 2);
}

TEST_F(ShardOwnerServiceTest, BadRead_SaysWhatThereIs) {
  Register();
  v1::ReadSlotRequest request;
  request.set_name("conv");
  std::vector<v1::SlotChunk> chunks;
  grpc::Status status = Read(request, &chunks);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("fc.weight, fc.bias"));

  request.set_name("fc.bias");
  request.set_offset_elements(-1);
  EXPECT_EQ(Read(request, &chunks).error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  request.set_offset_elements(0);
  request.set_elements(5);
  view_.read = [](int64_t, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    return absl::OutOfRangeError("owned: [50000, 100000)");
  };
  status = Read(request, &chunks);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(status.error_message(), "owned: [50000, 100000)");
  EXPECT_TRUE(chunks.empty());
}

TEST_F(ShardOwnerServiceTest, ReadBeyondAllNumbers_IsOutOfRange) {
  Register();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const std::string slot : {"exp_avg", "step"}) {
    v1::ReadSlotRequest request;
    request.set_slot(slot);
    request.set_offset_elements(kMax);
    request.set_elements(1);
    std::vector<v1::SlotChunk> chunks;
    EXPECT_EQ(Read(request, &chunks).error_code(), grpc::StatusCode::OUT_OF_RANGE);
    request.set_offset_elements(1);
    request.set_elements(kMax);
    EXPECT_EQ(Read(request, &chunks).error_code(), grpc::StatusCode::OUT_OF_RANGE);
    EXPECT_TRUE(chunks.empty());
  }
}

TEST_F(ShardOwnerServiceTest, Timeline_IsJsonInPieces) {
  for (int i = 0; i < 20000; ++i) {
    TimelineSpan span;
    span.step = 5;
    span.bucket = i;
    span.phase = "update";
    span.start_us = int64_t{10} * i;
    span.duration_us = 7;
    view_.timeline.push_back(span);
  }
  Register();
  const auto context = Context();
  const auto reader = stub_->GetTimeline(context.get(), v1::GetTimelineRequest());
  std::string json;
  int pieces = 0;
  v1::TimelineChunk chunk;
  for (; reader->Read(&chunk); ++pieces) json += chunk.json();
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_GT(pieces, 1);
  const nlohmann::json trace = nlohmann::json::parse(json);
  EXPECT_GT(trace["traceEvents"].size(), 20000);
}

TEST_F(ShardOwnerServiceTest, UnregisterWhileACallReads_WaitsForItAndNoLonger) {
  AddSlice("large", {200000}, 0, 200000);
  absl::Notification reading;
  absl::Notification go_on;
  bool left = false;
  view_.read = [&](int64_t offset, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    EXPECT_FALSE(left);
    if (offset == 0) {
      reading.Notify();
      go_on.WaitForNotification();
    }
    return StepNumber{1};
  };
  Register();
  grpc::Status status;
  std::vector<v1::SlotChunk> chunks;
  std::thread client([&] {
    v1::ReadSlotRequest request;
    request.set_name("large");
    request.set_slot("exp_avg");
    status = Read(request, &chunks);
  });
  reading.WaitForNotification();
  std::thread owner([&] {
    views_.Unregister("default", 1);
    left = true;
  });
  // From the moment when Unregister has begun no other call finds the view.
  v1::ShardDescription description;
  while (Describe("default", &description).ok()) std::this_thread::yield();
  go_on.Notify();
  owner.join();
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(chunks.size(), 1);
}

TEST(ShardOwnerServer_AddressTaken, SaysWhich) {
  ShardViewRegistry views;
  const auto first = ShardOwnerServer::Start(ShardOwnerServer::Options(), &views);
  ASSERT_TRUE(first.ok());
  ShardOwnerServer::Options options;
  options.listen = absl::StrCat("127.0.0.1:", (*first)->port());
  const auto second = ShardOwnerServer::Start(options, &views);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(options.listen));
}

}  // namespace
}  // namespace optshard::testing

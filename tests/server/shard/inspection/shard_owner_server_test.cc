// What the service says about shards, their parameters and their steps; read_slot_test.cc has the
// values of slots.

#include "server/shard/inspection/shard_owner_server.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/server/shard/inspection/shard_owner_service_fixture.h"

namespace optshard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
  view_.description.activity = {RankPhase::kCommit, absl::Microseconds(70)};
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
  EXPECT_EQ(description.phase(), v1::RANK_PHASE_COMMIT);
  EXPECT_EQ(description.phase_us(), 70);
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

TEST_F(ShardOwnerServiceTest, ListByName_HasOnlyThoseThatMatchInPages) {
  for (int i = 0; i < 3000; ++i) {
    AddSlice(absl::StrCat("h.", i, i % 2 == 0 ? ".weight" : ".bias"), {4}, 0, 4);
  }
  Register();
  v1::ListParametersRequest request;
  request.set_name("h.*.bias");
  request.set_page_size(400);
  size_t seen = 0;
  v1::ListParametersResponse page;
  do {
    request.set_page_token(page.next_page_token());
    ASSERT_TRUE(stub_->ListParameters(Context().get(), request, &page).ok());
    for (const v1::OwnedParameter& parameter : page.parameters()) {
      ASSERT_EQ(parameter.name(), absl::StrCat("h.", 2 * seen++ + 1, ".bias"));
    }
  } while (!page.next_page_token().empty());
  EXPECT_EQ(seen, 1500);
  EXPECT_THAT(page.summary(), HasSubstr("this page has 300 slices, the last ones"));

  request.clear_page_token();
  request.set_name("g.*");
  ASSERT_TRUE(stub_->ListParameters(Context().get(), request, &page).ok());
  EXPECT_EQ(page.parameters_size(), 0);
  request.set_name(std::string(1025, '*'));
  EXPECT_EQ(stub_->ListParameters(Context().get(), request, &page).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
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

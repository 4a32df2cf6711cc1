#include "common/rpc/status_rpc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/rpc/channel_rpc.h"
#include "common/rpc/server_rpc.h"
#include "proto/optshard/v1/coordinator.grpc.pb.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;

TEST(StatusRpc, ThereAndBack_KeepsCodeTextAndKind) {
  const absl::Status statuses[] = {
      absl::OkStatus(),
      absl::InvalidArgumentError("no such rule"),
      errors::PeerLost(3, "killed"),
      errors::PeersTimedOut({1, 2}, "joining"),
      errors::TornStep(7, "rank 3 was lost"),
      errors::StepInDoubt(7, "rank 3 was lost"),
      errors::StaleGeneration(1, 2),
      errors::StaleIncarnation(0, 1, 2),
      errors::RanksDisagree({1}, "rule"),
  };
  for (const absl::Status& status : statuses) EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
}

TEST(StatusRpc, LongMessage_IsCutAndKeepsItsKind) {
  const absl::Status status = FromGrpc(ToGrpc(errors::PeerLost(3, std::string(100'000, 'x'))));
  EXPECT_LT(status.message().size(), 5000u);
  EXPECT_TRUE(errors::IsPeerLost(status));
  EXPECT_THAT(errors::RanksOf(status), ElementsAre(3));
}

// Answers every call to leave with one error.
class Refusing final : public v1::Coordinator::Service {
 public:
  explicit Refusing(absl::Status error) : error_(std::move(error)) {}

  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest*, v1::LeaveResponse*) override {
    return ToGrpc(error_);
  }

 private:
  const absl::Status error_;
};

TEST(StatusRpc, ThousandsOfRanksAndALongMessage_PassAConnection) {
  std::vector<Rank> ranks(10'000);
  std::iota(ranks.begin(), ranks.end(), 0);
  Refusing service(errors::PeersTimedOut(ranks, std::string(100'000, '\n')));
  const absl::StatusOr<ListeningServer> listening = StartServer("127.0.0.1:0", {&service});
  ASSERT_TRUE(listening.ok()) << listening.status();
  const auto stub =
      v1::Coordinator::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", listening->port)));
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(absl::Seconds(20)));
  v1::LeaveResponse response;
  const absl::Status status = FromGrpc(stub->Leave(&context, v1::LeaveRequest(), &response));
  EXPECT_TRUE(errors::IsPeersTimedOut(status)) << status;
  EXPECT_NE(status.message().find("14, 15 and 9984 more: "), absl::string_view::npos) << status;
  const std::vector<Rank> known = errors::RanksOf(status);
  ASSERT_GT(known.size(), 400u);
  EXPECT_TRUE(std::equal(known.begin(), known.end(), ranks.begin()));
}

TEST(StatusRpc, ForeignErrorDetails_AreNoKind) {
  const absl::Status status =
      FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, "refused", "not ours"));
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_FALSE(errors::IsPeerLost(status));
}

TEST(WithPort, KeepsTheHost) {
  EXPECT_EQ(WithPort("127.0.0.1:0", 4700), "127.0.0.1:4700");
  EXPECT_EQ(WithPort("localhost", 4700), "localhost:4700");
  EXPECT_EQ(WithPort("[::1]:0", 4700), "[::1]:4700");
  EXPECT_EQ(WithPort("[::1]", 4700), "[::1]:4700");
}

}  // namespace
}  // namespace optshard

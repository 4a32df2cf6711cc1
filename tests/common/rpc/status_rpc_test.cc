#include "common/rpc/status_rpc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/errors.h"
#include "common/rpc/server_rpc.h"

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

// A job without a coordinator of its own: rank 0's process runs one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/free_port.h"
#include "tests/testing/mini_cluster.h"
#include "tests/testing/trainers_run.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;
using testing::MiniCluster;

constexpr int kWorldSize = 3;

absl::Time Deadline() { return absl::Now() + absl::Seconds(60); }

class EmbeddedCoordinatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::TrainersRun()) GTEST_SKIP() << testing::kTrainersCannotRun;
    MiniCluster::Options options;
    options.world_size = kWorldSize;
    options.coordinator = false;
    auto cluster = MiniCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    // Rank 0 last: the others wait for its coordinator to appear.
    const std::string address = absl::StrCat("127.0.0.1:", testing::FreePort());
    for (int rank = kWorldSize - 1; rank >= 0; --rank) {
      ASSERT_EQ(cluster_->AddTrainer(rank, {"--coordinator=", "--steps=20", "--hold",
                                            "--embedded_coordinator=" + address}),
                absl::OkStatus());
    }
    for (int rank = 0; rank < kWorldSize; ++rank) {
      const auto done = trainer(rank).WaitFor("done", Deadline());
      ASSERT_TRUE(done.ok()) << done.status();
    }
  }

  testing::TestTrainer& trainer(int rank) { return cluster_->trainer(kWorldSize - 1 - rank); }

  std::unique_ptr<MiniCluster> cluster_;
};

TEST_F(EmbeddedCoordinatorTest, Close_RankZeroFirst_AllEndInGoodOrder) {
  for (int rank = 0; rank < kWorldSize; ++rank) {
    absl::SleepFor(absl::Milliseconds(rank * 100));
    trainer(rank).Release();
  }
  for (int rank = 0; rank < kWorldSize; ++rank) {
    EXPECT_EQ(*trainer(rank).process().Wait(Deadline()), 0) << trainer(rank).output();
  }
}

TEST_F(EmbeddedCoordinatorTest, Kill_RankZeroWithItsCoordinator_OthersAreToldWho) {
  trainer(0).process().Signal(SIGKILL);
  trainer(0).process().Wait(Deadline()).IgnoreError();
  for (const int rank : {1, 2}) {
    trainer(rank).Release();  // to close, which rank 0 will not
    const auto error = trainer(rank).WaitFor("error", Deadline());
    ASSERT_TRUE(error.ok()) << error.status();
    EXPECT_THAT(error->at("message").get<std::string>(), HasSubstr("rank 0"));
    EXPECT_EQ(*trainer(rank).process().Wait(Deadline()), 1);
  }
}

}  // namespace
}  // namespace optshard

// Real trainers that take their options from the environment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/mini_cluster.h"
#include "tests/testing/trainers_run.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;
using testing::MiniCluster;

constexpr int kWorldSize = 2;

absl::Time Deadline() { return absl::Now() + absl::Seconds(60); }

void Set(const std::string& name, const std::string& value) {
  ASSERT_EQ(setenv(name.c_str(), value.c_str(), 1), 0);
}

// Trains on both ranks with the variable set, and returns the checksum that both end with. Each
// says in its log that it steps in this way.
std::string TrainWithPlane(const std::string& plane, const std::string& way) {
  MiniCluster::Options options;
  options.world_size = kWorldSize;
  const auto cluster = MiniCluster::Start(options);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  if (!cluster.ok()) return "";
  Set("OPTSHARD_PLANE", plane);
  Set("OPTSHARD_LOG_LEVEL", "info");
  Set("OPTSHARD_COORDINATOR", (*cluster)->coordinator_address());
  Set("WORLD_SIZE", absl::StrCat(kWorldSize));
  for (int rank = 0; rank < kWorldSize; ++rank) {
    Set("RANK", absl::StrCat(rank));
    EXPECT_TRUE((*cluster)->AddTrainer(rank, {"--from_environment"}).ok());
  }
  std::string checksum;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    testing::TestTrainer& trainer = (*cluster)->trainer(rank);
    const auto done = trainer.WaitFor("done", Deadline());
    EXPECT_TRUE(done.ok()) << done.status();
    if (!done.ok()) return "";
    EXPECT_THAT(trainer.output(), HasSubstr(way)) << "rank " << rank;
    const std::string own = done->at("checksum").dump();
    EXPECT_TRUE(checksum.empty() || checksum == own) << checksum << " and " << own;
    checksum = own;
  }
  return checksum;
}

TEST(Environment, Plane_IsTheOneThatTheRanksStepOver_WithTheSameBits) {
  if (!testing::TrainersRun()) GTEST_SKIP() << testing::kTrainersCannotRun;
  const std::string shm = TrainWithPlane("shm", "steps run in one pass over the memory");
  EXPECT_NE(shm, "");
  EXPECT_EQ(TrainWithPlane("gloo", "steps send messages over Gloo"), shm);
}

}  // namespace
}  // namespace optshard

// Trainers attached to a real shard server, all of them processes that a test starts, watches and
// kills.
#ifndef OPTSHARD_TESTS_INTEGRATION_SHARD_SERVER_FIXTURE_H_
#define OPTSHARD_TESTS_INTEGRATION_SHARD_SERVER_FIXTURE_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/membership/membership.h"
#include "tests/testing/mini_cluster.h"
#include "tests/testing/server_ledgers.h"

namespace optshard::testing {

class ShardServerFixture : public ::testing::Test {
 protected:
  static constexpr int kWorldSize = 3;
  static constexpr absl::Duration kNoticed = absl::Seconds(2);

  static absl::Time Deadline() { return absl::Now() + absl::Seconds(60); }
  static int64_t NowMicros() { return absl::ToUnixMicros(Clock::Monotonic().Now()); }

  void StartServer(const std::vector<std::string>& arguments = {},
                   const std::string& ranks = "0-2") {
    cluster_options_.world_size = kWorldSize;
    auto cluster = MiniCluster::Start(cluster_options_);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    const absl::StatusOr<std::string> attach = cluster_->AddServer(ranks, arguments);
    ASSERT_TRUE(attach.ok()) << attach.status();
    attach_ = *attach;
  }

  // Returns the trainer's index in the cluster.
  int Add(int rank, const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {absl::StrCat("--attach=", attach_), "--policy=balanced"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    EXPECT_EQ(cluster_->AddTrainer(rank, all), absl::OkStatus());
    return added_++;
  }

  nlohmann::json Event(int trainer, const std::string& event) {
    const auto line = cluster_->trainer(trainer).WaitFor(event, Deadline());
    EXPECT_TRUE(line.ok()) << line.status();
    return line.ok() ? *line : nlohmann::json();
  }

  // Stops the first server, which has so many ranks, at such a moment. Returns the last step that
  // each of them had finished by then.
  StepNumber StopServerWhen(const ServerLedgers::Moment& moment, int ranks = kWorldSize) {
    const absl::StatusOr<pid_t> process = cluster_->ServerProcess(0);
    EXPECT_TRUE(process.ok()) << process.status();
    absl::StatusOr<ServerLedgers> ledgers = ServerLedgers::Of(process.value_or(0), ranks);
    EXPECT_TRUE(ledgers.ok()) << ledgers.status();
    if (!ledgers.ok()) return 0;
    ledgers_ = std::make_unique<ServerLedgers>(*std::move(ledgers));
    const absl::Status stopped = ledgers_->StopWhen(moment, Deadline());
    EXPECT_TRUE(stopped.ok()) << stopped;
    StepNumber finished = std::numeric_limits<StepNumber>::max();
    for (const KeptState& each : ledgers_->Read()) {
      finished = std::min(finished, each.progress.finished);
    }
    return finished;
  }

  void Kill(int trainer) {
    cluster_->trainer(trainer).process().Signal(SIGKILL);
    EXPECT_EQ(*cluster_->trainer(trainer).process().Wait(Deadline()), 128 + SIGKILL);
  }

  // The checksum that all ranks end with when nobody disturbs them.
  std::string Undisturbed(const std::vector<std::string>& arguments) {
    StartServer();
    for (int rank = 0; rank < kWorldSize; ++rank) Add(rank, arguments);
    std::string checksum;
    for (int rank = 0; rank < kWorldSize; ++rank) {
      checksum = Event(rank, "done").at("checksum").dump();
      EXPECT_EQ(*cluster_->trainer(rank).process().Wait(Deadline()), 0);
    }
    cluster_.reset();
    added_ = 0;
    return checksum;
  }

  MiniCluster::Options cluster_options_;  // set it before StartServer
  std::unique_ptr<MiniCluster> cluster_;
  std::unique_ptr<ServerLedgers> ledgers_;
  std::string attach_;
  int added_ = 0;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_INTEGRATION_SHARD_SERVER_FIXTURE_H_

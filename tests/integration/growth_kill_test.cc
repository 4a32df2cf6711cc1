// A campaign: a server, a trainer or the coordinator is killed at a random moment of a job that
// adds param groups and loads state between its steps. The job goes on with the bits of one that
// nobody disturbs, or every trainer is told what was lost.
//   --test_env=OPTSHARD_GROWTH_ROUNDS=300  as many rounds; a few where it is not set
//   --test_env=OPTSHARD_GROWTH_SEED=7      the first one's seed, which each round prints
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/shard_server_fixture.h"

namespace optshard {
namespace {

constexpr uint64_t kRounds = 4;
constexpr uint64_t kFirstSeed = 1;

enum class Victim { kServer, kTrainer, kCoordinator };
// A coordinator that is gone ends the job where groups are to be added: seldom.
constexpr Victim kVictims[] = {Victim::kServer,  Victim::kTrainer, Victim::kServer,
                               Victim::kTrainer, Victim::kServer,  Victim::kCoordinator};

uint64_t NumberOf(const char* variable, uint64_t otherwise) {
  const char* const given = std::getenv(variable);
  uint64_t number = otherwise;
  if (given != nullptr && !absl::SimpleAtoi(given, &number)) {
    ADD_FAILURE() << variable << " is " << given << ", expected a number";
  }
  return number;
}

class GrowthKillTest : public testing::ShardServerFixture {
 protected:
  static std::vector<std::string> Arguments() {
    return {"--steps=6",          "--elements=200000",      "--add_after=1,3,4",
            "--load_after=2",     "--join_timeout_ms=8000", "--step_timeout_ms=20000",
            "--wait_for_trainers"};
  }

  // What a trainer ends with: its checksum, or its error.
  nlohmann::json End(int trainer) {
    const auto line = cluster_->trainer(trainer).WaitForAny({"done", "error"}, Deadline());
    EXPECT_TRUE(line.ok()) << "trainer " << trainer << ": " << line.status();
    return line.ok() ? *line : nlohmann::json();
  }

  void KillServer() {
    const absl::StatusOr<pid_t> process = cluster_->ServerProcess(0);
    if (process.ok()) kill(*process, SIGKILL);
  }

  // Whether the job went on.
  bool Round(uint64_t seed, const std::string& expected, absl::Duration length) {
    std::mt19937_64 random(seed);
    const Victim victim = kVictims[random() % std::size(kVictims)];
    const int rank = static_cast<int>(random() % kWorldSize);
    const absl::Duration moment = length * (static_cast<double>(random() % 10000) / 10000);
    StartServer();
    for (int r = 0; r < kWorldSize; ++r) Add(r, Arguments());
    for (int r = 0; r < kWorldSize; ++r) Event(r, "joined");
    absl::SleepFor(moment);
    int last[kWorldSize];
    for (int r = 0; r < kWorldSize; ++r) last[r] = r;
    switch (victim) {
      case Victim::kServer:
        KillServer();
        break;
      case Victim::kTrainer:
        cluster_->trainer(rank).process().Signal(SIGKILL);
        // It may be done already.
        if (*cluster_->trainer(rank).process().Wait(Deadline()) == 128 + SIGKILL) {
          last[rank] = Add(rank, Arguments());
        }
        break;
      case Victim::kCoordinator:
        cluster_->coordinator().Signal(SIGKILL);
        break;
    }
    std::string lost;
    for (const int trainer : last) {
      const nlohmann::json end = End(trainer);
      const std::string what = absl::StrCat("seed ", seed, ", trainer ", trainer, ": ", end.dump());
      if (end.value("event", "") == "done") {
        EXPECT_EQ(end.at("checksum").dump(), expected) << what;
        continue;
      }
      const std::string message = end.value("message", "");
      absl::StrAppend(&lost, "\n    trainer ", trainer, ": ", message);
      EXPECT_TRUE(absl::StrContains(message, "rank ") || absl::StrContains(message, "coordinator"))
          << what;
    }
    std::printf("seed %llu: %s at %s: %s\n", static_cast<unsigned long long>(seed),
                victim == Victim::kServer    ? "the server is killed"
                : victim == Victim::kTrainer ? absl::StrCat("trainer ", rank, " is killed").c_str()
                                             : "the coordinator is killed",
                absl::FormatDuration(moment).c_str(),
                lost.empty() ? "goes on" : absl::StrCat("is lost, and said so", lost).c_str());
    cluster_.reset();
    added_ = 0;
    return lost.empty();
  }
};

TEST_F(GrowthKillTest, KilledAtAnyMoment_TheJobGoesOnWithTheSameBitsOrAllAreTold) {
  const uint64_t rounds = NumberOf("OPTSHARD_GROWTH_ROUNDS", kRounds);
  const uint64_t first = NumberOf("OPTSHARD_GROWTH_SEED", kFirstSeed);
  StartServer();
  for (int rank = 0; rank < kWorldSize; ++rank) Add(rank, Arguments());
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "joined");
  const absl::Time begin = absl::Now();
  std::string expected;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    expected = Event(rank, "done").at("checksum").dump();
  }
  const absl::Duration length = absl::Now() - begin;
  cluster_.reset();
  added_ = 0;
  uint64_t went_on = 0;
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    if (Round(seed, expected, length)) ++went_on;
  }
  std::printf("%llu of %llu jobs went on\n", static_cast<unsigned long long>(went_on),
              static_cast<unsigned long long>(rounds));
}

}  // namespace
}  // namespace optshard

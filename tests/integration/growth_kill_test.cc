// A campaign: a server, a trainer or the coordinator is killed at a random moment of a job that
// adds param groups between its steps, with one server or two, and with optimizers that wait for
// what is away or programs that call again. What survives by design must go on, and end with the
// parameters and the state of a job that nobody disturbs, to the bit on every rank. These alone may
// end the job, with an error that names them:
//   - a server that is killed inside a step: the state is torn, and said to be so
//   - a server or a trainer that is killed inside a load, which all ranks have to begin anew
//   - the coordinator, where groups have still to be added
//   --test_env=OPTSHARD_GROWTH_ROUNDS=300  as many rounds; a few where it is not set
//   --test_env=OPTSHARD_GROWTH_SEED=7      the first one's seed, which each round prints
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
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
constexpr int kGroups = 3;  // that are added

enum class Victim { kServer, kTrainer, kCoordinator };
constexpr Victim kVictims[] = {Victim::kServer, Victim::kTrainer, Victim::kServer, Victim::kTrainer,
                               Victim::kCoordinator};

std::string NameOf(Victim victim) {
  switch (victim) {
    case Victim::kServer:
      return "a server";
    case Victim::kTrainer:
      return "a trainer";
    case Victim::kCoordinator:
      return "the coordinator";
  }
  return "";
}

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
  struct Setting {
    int servers = 1;
    bool waits = true;  // the optimizers do; otherwise their programs alone
  };

  // What undisturbed trainers end with, by rank.
  struct Undisturbed {
    std::vector<std::string> ends;
    absl::Duration length;
  };

  // A load is a call of all ranks that is begun anew: only an optimizer that waits knows whether
  // the others begin it anew, too.
  static std::vector<std::string> Arguments(const Setting& setting) {
    std::vector<std::string> arguments = {
        "--steps=6",      "--elements=200000",      "--add_after=1,3,4",       "--tell_state",
        "--load_after=2", "--join_timeout_ms=8000", "--step_timeout_ms=20000", "--call_again"};
    if (setting.waits) arguments.push_back("--wait_for_trainers");
    if (!setting.waits) arguments.push_back("--load_after=0");
    return arguments;
  }

  int AddTrainer(int rank, const Setting& setting) {
    attach_ = servers_[setting.servers == 1 || rank < 2 ? 0 : 1];
    return Add(rank, Arguments(setting));
  }

  void StartJob(const Setting& setting) {
    servers_.clear();
    if (setting.servers == 1) {
      StartServer();
      servers_ = {attach_};
    } else {
      StartServer({}, "0-1");
      servers_ = {attach_, cluster_->AddServer("2").value()};
    }
    for (int rank = 0; rank < kWorldSize; ++rank) AddTrainer(rank, setting);
    for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "joined");
  }

  void EndJob() {
    cluster_.reset();
    added_ = 0;
  }

  // What a trainer ends with: its checksum and state, or its error.
  nlohmann::json End(int trainer) {
    const auto line = cluster_->trainer(trainer).WaitForAny({"done", "error"}, Deadline());
    EXPECT_TRUE(line.ok()) << "trainer " << trainer << ": " << line.status();
    return line.ok() ? *line : nlohmann::json();
  }

  Undisturbed RunUndisturbed(const Setting& setting) {
    Undisturbed run;
    StartJob(setting);
    const absl::Time begin = absl::Now();
    for (int rank = 0; rank < kWorldSize; ++rank) run.ends.push_back(Event(rank, "done").dump());
    run.length = absl::Now() - begin;
    EndJob();
    return run;
  }

  // Half of the rounds aim at the addition of a group, which is short.
  void AwaitMoment(std::mt19937_64& random, int rank, absl::Duration length) {
    const double share = static_cast<double>(random() % 10000) / 10000;
    if (random() % 2 == 0) {
      absl::SleepFor(length * share);
      return;
    }
    for (uint64_t group = random() % kGroups + 1; group > 0; --group) Event(rank, "adding");
    absl::SleepFor(absl::Milliseconds(40) * share);
  }

  // Why this kill may have ended the job, as its trainers end; "" where it may not.
  static std::string Loss(Victim victim, const std::vector<nlohmann::json>& ends) {
    bool in_load = false;
    bool in_add = false;
    bool torn_step = false;
    bool names_coordinator = false;
    for (const nlohmann::json& end : ends) {
      if (end.value("event", "") != "error") continue;
      const std::string call = end.value("call", "");
      in_load = in_load || call == "load";
      in_add = in_add || call == "add";
      torn_step = torn_step || (call == "step" && end.value("torn", false));
      names_coordinator =
          names_coordinator || absl::StrContains(end.value("message", ""), "coordinator");
    }
    if (victim == Victim::kCoordinator) {
      return in_add && names_coordinator ? "no coordinator adds groups" : "";
    }
    if (in_load) return "inside a load";
    return victim == Victim::kServer && torn_step ? "a torn step" : "";
  }

  // How it ended: "goes on", or what was lost.
  std::string Round(uint64_t seed, Victim victim, const Setting& setting,
                    const Undisturbed& expected) {
    std::mt19937_64 random(seed);
    random.discard(1);
    const int rank = static_cast<int>(random() % kWorldSize);
    StartJob(setting);
    AwaitMoment(random, rank, expected.length);
    std::vector<int> last = {0, 1, 2};
    switch (victim) {
      case Victim::kServer: {
        const auto process = cluster_->ServerProcess(setting.servers == 1 || rank < 2 ? 0 : 1);
        if (process.ok()) kill(*process, SIGKILL);
        break;
      }
      case Victim::kTrainer:
        cluster_->trainer(rank).process().Signal(SIGKILL);
        // It may be done already.
        if (*cluster_->trainer(rank).process().Wait(Deadline()) == 128 + SIGKILL) {
          last[rank] = AddTrainer(rank, setting);
        }
        break;
      case Victim::kCoordinator:
        cluster_->coordinator().Signal(SIGKILL);
        break;
    }
    std::vector<nlohmann::json> ends;
    std::string lost;
    for (const int trainer : last) {
      ends.push_back(End(trainer));
      if (ends.back().value("event", "") == "done") continue;
      absl::StrAppend(&lost, "\n    rank ", ends.size() - 1, ", call ",
                      ends.back().value("call", ""), ": ", ends.back().value("message", ""));
    }
    const std::string what = absl::StrCat(
        "seed ", seed, ", ", setting.servers, setting.servers == 1 ? " server" : " servers", ", ",
        setting.waits ? "waits" : "calls again", ": ", NameOf(victim), " is killed, rank ", rank);
    std::printf("%s: %s\n", what.c_str(), lost.empty() ? "goes on" : lost.c_str());
    std::fflush(stdout);
    for (size_t r = 0; r < ends.size(); ++r) {
      if (ends[r].value("event", "") != "done") continue;
      EXPECT_EQ(ends[r].dump(), expected.ends[r]) << what << ", rank " << r;
    }
    EndJob();
    if (lost.empty()) return "goes on";
    std::string loss = Loss(victim, ends);
    EXPECT_NE(loss, "") << what << lost;
    return loss;
  }

 private:
  std::vector<std::string> servers_;
};

TEST_F(GrowthKillTest, KilledAtAnyMoment_TheJobGoesOnWithTheSameBitsOrAllAreTold) {
  const uint64_t rounds = NumberOf("OPTSHARD_GROWTH_ROUNDS", kRounds);
  const uint64_t first = NumberOf("OPTSHARD_GROWTH_SEED", kFirstSeed);
  std::map<std::pair<int, bool>, Undisturbed> expected;
  std::map<std::pair<Victim, std::string>, int> counts;  // of rounds, by how they ended
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    const Setting setting = {seed % 2 == 0 ? 2 : 1, seed / 2 % 2 == 0};
    Undisturbed& undisturbed = expected[{setting.servers, setting.waits}];
    if (undisturbed.ends.empty()) undisturbed = RunUndisturbed(setting);
    const Victim victim = kVictims[seed % std::size(kVictims)];
    ++counts[{victim, Round(seed, victim, setting, undisturbed)}];
  }
  for (const auto& [end, count] : counts) {
    std::printf("%s is killed: %d, %s\n", NameOf(end.first).c_str(), count, end.second.c_str());
  }
}

}  // namespace
}  // namespace optshard

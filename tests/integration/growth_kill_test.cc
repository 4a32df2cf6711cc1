// A campaign: a server, a trainer or the coordinator is killed at a random moment of a job that
// adds param groups between its steps, and loads a state dict or a checkpoint: with one server or
// two, and with optimizers that wait for what is away or programs that call again. It must go on,
// and end with the parameters and the state of a job that nobody disturbs, to the bit on every
// rank. These alone may end it, with errors of which all ranks are told:
//   - a server that is killed while a step is applied: the state is torn
//   - one that is killed while a state dict takes its place, where the optimizers do not wait
//   - the coordinator, where groups have still to be added
// On the way a trainer may be told what docs/errors.md has of an interrupted call, and no more. It
// must name a rank that is away, or ranks that are elsewhere.
//   OPTSHARD_GROWTH_ROUNDS=300  as many rounds; a few where it is not set
//   OPTSHARD_GROWTH_SEED=7      the first one's seed, which each round prints
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/control/checkpoint_call_rpc.h"
#include "tests/integration/shard_server_fixture.h"
#include "tests/testing/number_from_environment.h"

namespace optshard {
namespace {

constexpr uint64_t kRounds = 4;
constexpr uint64_t kFirstSeed = 1;

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

struct Setting {
  int servers = 1;
  bool waits = true;             // the optimizers do; otherwise their programs alone
  bool from_checkpoint = false;  // they load; otherwise a state dict
  bool grows_on = true;          // groups are added after the load, too

  int groups() const { return grows_on ? 3 : 1; }  // that are added
  std::string text() const {
    return absl::StrCat(
        servers, servers == 1 ? " server, " : " servers, ", waits ? "waits, " : "calls again, ",
        from_checkpoint ? "checkpoint" : "state dict", grows_on ? "" : ", no group after it");
  }
};

struct Round {
  uint64_t seed = 0;
  Setting setting;
  Victim victim = Victim::kServer;
  int rank = 0;                   // whose trainer, or whose server
  std::string place = "nothing";  // that a rank was in when it was killed: "loading" or "adding"

  std::string text() const {
    return absl::StrCat("seed ", seed, ", ", setting.text(), ": ", NameOf(victim),
                        " is killed, rank ", rank, ", in ", place);
  }

  // Whether the errors of calls may name this rank as one that is away.
  bool takes(int other) const {
    if (victim == Victim::kTrainer || other == rank) return other == rank;
    return setting.servers == 1 || (other < 2) == (rank < 2);
  }
};

// In its text alone.
bool NamesARank(const std::string& message) {
  const auto names = [&](char digit) {
    const std::string number(1, digit);
    return absl::StrContains(message, "rank " + number) ||
           absl::StrContains(message, "ranks " + number);
  };
  return absl::c_any_of(std::string("0123456789"), names);
}

// Why a trainer may not be told this in such a round; "" where it may.
std::string Undocumented(const nlohmann::json& told, const Round& round) {
  const std::string code = told.value("code", "");
  const std::string message = told.value("message", "");
  const std::string call = told.value("call", "");
  if (round.victim == Victim::kCoordinator) {
    return call == "add" && absl::StrContains(message, "coordinator") ? "" : "only adding needs it";
  }
  if (code == "ABORTED") {
    if (call != "load" || round.setting.waits) return "only a load that does not wait ends so";
    return NamesARank(message) ? "" : "it names no rank";
  }
  const std::vector<int> ranks = told.at("ranks");
  if (ranks.empty()) return "it names no rank";
  if (code == "UNAVAILABLE") {
    return absl::c_all_of(ranks, [&](int rank) { return round.takes(rank); })
               ? ""
               : "it names a rank that nothing was done to";
  }
  if (told.value("torn", false)) {
    return round.victim == Victim::kServer ? "" : "no server was killed";
  }
  // Some ranks have loaded, and step; others, or a successor, have still to load.
  const bool others_load =
      absl::StrContains(message, "load") || absl::StrContains(message, "consolidate");
  if (code != "INVALID_ARGUMENT" || !others_load) return "no kill does this";
  const bool is_known =
      round.setting.from_checkpoint && round.setting.waits && round.victim == Victim::kServer;
  return is_known ? "a server's successor knows the end of a load_checkpoint" : "";
}

// Which of the losses this is that may end a job; "" where it is none.
std::string Loss(const Round& round, const std::vector<nlohmann::json>& ends) {
  for (const nlohmann::json& end : ends) {
    const std::string call = end.value("call", "");
    if (round.victim == Victim::kCoordinator && call == "add") return "no coordinator adds groups";
    if (round.victim != Victim::kServer || !end.value("torn", false)) continue;
    if (call == "step") return "a torn step";
    const bool loads_again = round.setting.waits || round.setting.from_checkpoint;
    if (call == "load" && !loads_again) return "a torn load";
  }
  return "";
}

class GrowthKillTest : public testing::ShardServerFixture {
 protected:
  GrowthKillTest() {
    std::string pattern = absl::StrCat(::testing::TempDir(), "/checkpoints.XXXXXX");
    checkpoints_ = mkdtemp(pattern.data());
  }
  ~GrowthKillTest() override { std::filesystem::remove_all(checkpoints_); }

  // How long it takes that nobody disturbs.
  struct Lengths {
    absl::Duration job;
    absl::Duration load;
  };

  std::vector<std::string> Arguments(const Setting& setting) {
    std::vector<std::string> arguments = {
        "--steps=6",    "--elements=200000",      "--tell_state",           "--load_after=2",
        "--call_again", "--join_timeout_ms=8000", "--step_timeout_ms=20000"};
    arguments.push_back(setting.grows_on ? "--add_after=1,4,5" : "--add_after=1");
    if (setting.waits) arguments.push_back("--wait_for_trainers");
    if (setting.from_checkpoint) arguments.push_back(absl::StrCat("--load_from=", checkpoints_));
    return arguments;
  }

  int AddTrainer(int rank, const Setting& setting, const std::vector<std::string>& more = {}) {
    attach_ = servers_[setting.servers == 1 || rank < 2 ? 0 : 1];
    std::vector<std::string> arguments = Arguments(setting);
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Add(rank, arguments);
  }

  void StartJob(const Setting& setting, const std::vector<std::string>& more = {}) {
    servers_.clear();
    if (setting.servers == 1) {
      StartServer();
      servers_ = {attach_};
    } else {
      StartServer({}, "0-1");
      servers_ = {attach_, cluster_->AddServer("2").value()};
    }
    for (int rank = 0; rank < kWorldSize; ++rank) AddTrainer(rank, setting, more);
    for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "joined");
  }

  void EndJob() {
    cluster_.reset();
    added_ = 0;
  }

  // Saves the checkpoint of step 3 that others load after step 2, and keeps what such jobs end
  // with.
  void RunSaved(bool grows_on) {
    Setting setting;
    setting.grows_on = grows_on;
    StartJob(setting, {"--pause_after=3"});
    for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "paused");
    CheckpointCall::Request request;
    request.coordinator = cluster_->coordinator_address();
    request.directory = checkpoints_;
    const auto saved = CheckpointCall::Start(request)->Await(absl::Seconds(30));
    ASSERT_TRUE(saved.ok()) << saved.status();
    ASSERT_EQ(saved->step, 3);
    for (int rank = 0; rank < kWorldSize; ++rank) cluster_->trainer(rank).Release();
    for (int rank = 0; rank < kWorldSize; ++rank) {
      expected_[grows_on].push_back(Event(rank, "done").dump());
    }
    EndJob();
  }

  Lengths RunUndisturbed(const Setting& setting) {
    Lengths lengths;
    StartJob(setting);
    const absl::Time begin = absl::Now();
    const int64_t loading_us = Event(0, "loading").at("at_us");
    lengths.load = absl::Microseconds(Event(0, "loaded").at("at_us").get<int64_t>() - loading_us);
    for (int rank = 0; rank < kWorldSize; ++rank) {
      EXPECT_EQ(Event(rank, "done").dump(), expected_[setting.grows_on][rank])
          << setting.text() << ", rank " << rank;
    }
    lengths.job = absl::Now() - begin;
    EndJob();
    return lengths;
  }

  // Half of the rounds aim at the load, some of them at its end, when others may not be told yet; a
  // third aims at the addition of a group, which is short.
  void AwaitMoment(std::mt19937_64& random, const Round& round, const Lengths& lengths) {
    const int rank = round.rank;
    const double share = static_cast<double>(random() % 10000) / 10000;
    switch (random() % 6) {
      case 0:
      case 1:
        Event(rank, "loading");
        absl::SleepFor(lengths.load * share);
        break;
      case 2:
        Event(rank, "loaded");
        break;
      case 3:
      case 4:
        for (uint64_t group = random() % round.setting.groups() + 1; group > 0; --group) {
          Event(rank, "adding");
        }
        absl::SleepFor(absl::Milliseconds(40) * share);
        break;
      default:
        absl::SleepFor(lengths.job * share);
    }
  }

  // The trainers that are to come to the end, by rank.
  std::vector<int> Kill(const Round& round) {
    const int rank = round.rank;
    std::vector<int> last = {0, 1, 2};
    switch (round.victim) {
      case Victim::kServer: {
        const auto process =
            cluster_->ServerProcess(round.setting.servers == 1 || rank < 2 ? 0 : 1);
        if (process.ok()) kill(*process, SIGKILL);
        break;
      }
      case Victim::kTrainer:
        cluster_->trainer(rank).process().Signal(SIGKILL);
        // It may be done already.
        if (*cluster_->trainer(rank).process().Wait(Deadline()) == 128 + SIGKILL) {
          last[rank] = AddTrainer(rank, round.setting);
        }
        break;
      case Victim::kCoordinator:
        cluster_->coordinator().Signal(SIGKILL);
        break;
    }
    return last;
  }

  // What a trainer ends with: its checksum and state, or its error.
  nlohmann::json End(int trainer) {
    const auto line = cluster_->trainer(trainer).WaitForAny({"done", "error"}, Deadline());
    EXPECT_TRUE(line.ok()) << "trainer " << trainer << ": " << line.status();
    return line.ok() ? *line : nlohmann::json();
  }

  // All that a trainer has told until it ended.
  std::vector<nlohmann::json> Told(int trainer) {
    cluster_->trainer(trainer).WaitFor("its end", Deadline()).IgnoreError();
    std::vector<nlohmann::json> told;
    for (const auto line : absl::StrSplit(cluster_->trainer(trainer).output(), '\n')) {
      const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (event.is_object()) told.push_back(event);
    }
    return told;
  }

  std::string PlaceAt(int64_t at_us) {
    std::string place = "nothing";
    for (int rank = 0; rank < kWorldSize; ++rank) {
      std::string in;
      for (const nlohmann::json& event : Told(rank)) {
        const std::string name = event.value("event", "");
        if (event.value("at_us", at_us) >= at_us) continue;
        if (name == "loading" || name == "adding") in = name;
        if (name == "loaded" || name == "added") in.clear();
      }
      if (in == "loading" || (in == "adding" && place == "nothing")) place = in;
    }
    return place;
  }

  // Returns how it ended: "goes on", or what was lost.
  std::string Run(Round& round, const Lengths& lengths) {
    std::mt19937_64 random(round.seed);
    random.discard(1);
    round.rank = static_cast<int>(random() % kWorldSize);
    StartJob(round.setting);
    AwaitMoment(random, round, lengths);
    const int64_t killed_us = NowMicros();
    std::vector<nlohmann::json> ends;
    for (const int trainer : Kill(round)) ends.push_back(End(trainer));
    round.place = PlaceAt(killed_us);
    std::string end = Judge(round, ends);
    std::printf("%s: %s\n", round.text().c_str(), end.c_str());
    for (int trainer = 0; trainer < added_; ++trainer) ExpectDocumented(trainer, round);
    std::fflush(stdout);
    EndJob();
    return end;
  }

  std::string Judge(const Round& round, const std::vector<nlohmann::json>& ends) {
    const std::string loss = Loss(round, ends);
    for (size_t r = 0; r < ends.size(); ++r) {
      const bool is_told = ends[r].value("event", "") == "error";
      EXPECT_EQ(is_told, !loss.empty()) << round.text() << ", rank " << r << ends[r];
      if (is_told) continue;
      EXPECT_EQ(ends[r].dump(), expected_[round.setting.grows_on][r])
          << round.text() << ", rank " << r;
    }
    return loss.empty() ? "goes on" : loss;
  }

  // Of what the trainer was told of calls that it has made again, or has ended with.
  void ExpectDocumented(int trainer, const Round& round) {
    std::string before;
    for (const nlohmann::json& told : Told(trainer)) {
      const std::string event = told.value("event", "");
      if (event != "again" && event != "error") continue;
      EXPECT_EQ(Undocumented(told, round), "") << round.text() << ", trainer " << trainer << told;
      const std::string text = absl::StrCat(event, ", ", told.value("call", ""), ": ",
                                            told.value("code", ""), " ", told.value("message", ""));
      if (text != before) std::printf("    trainer %d: %s\n", trainer, text.c_str());
      before = text;
    }
  }

 private:
  std::string checkpoints_;
  // What undisturbed trainers end with, by whether groups are added after the load, and by rank.
  std::map<bool, std::vector<std::string>> expected_;
  std::vector<std::string> servers_;
};

TEST_F(GrowthKillTest, KilledAtAnyMoment_TheJobGoesOnWithTheSameBitsOrAllAreTold) {
  const uint64_t rounds = testing::NumberFromEnvironment("OPTSHARD_GROWTH_ROUNDS", kRounds);
  const uint64_t first = testing::NumberFromEnvironment("OPTSHARD_GROWTH_SEED", kFirstSeed);
  for (const bool grows_on : {true, false}) ASSERT_NO_FATAL_FAILURE(RunSaved(grows_on));
  std::map<std::string, Lengths> lengths;  // by the setting
  std::map<std::string, int> counts;       // of rounds
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    Round round;
    round.seed = seed;
    round.setting = {seed % 2 == 0 ? 2 : 1, seed / 2 % 2 == 0, seed / 4 % 2 == 0};
    round.victim = kVictims[seed % std::size(kVictims)];
    // Without a coordinator a job goes on as long as no group is added.
    round.setting.grows_on = round.victim != Victim::kCoordinator || seed / 5 % 3 == 0;
    const std::string setting = round.setting.text();
    if (lengths.count(setting) == 0) lengths[setting] = RunUndisturbed(round.setting);
    const std::string end = Run(round, lengths[setting]);
    ++counts[absl::StrCat(NameOf(round.victim), " is killed in ", round.place, ": ", end)];
  }
  for (const auto& [what, count] : counts) std::printf("%4d %s\n", count, what.c_str());
}

}  // namespace
}  // namespace optshard

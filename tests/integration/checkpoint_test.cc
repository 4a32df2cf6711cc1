// Checkpoints of a job of real processes, asked for by one that is no part of it, while shard
// servers, trainers and the coordinator are killed.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/control/checkpoint_call_rpc.h"
#include "client/control/optimizer_client_rpc.h"
#include "common/rpc/channel_rpc.h"
#include "proto/optshard/v1/checkpoint.grpc.pb.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/posix_file_system.h"
#include "server/checkpoint/verify.h"
#include "tests/integration/shard_server_fixture.h"
#include "tests/testing/server_ledgers.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

class CheckpointTest : public testing::ShardServerFixture {
 protected:
  CheckpointTest() {
    std::string pattern = absl::StrCat(::testing::TempDir(), "/checkpoints.XXXXXX");
    root_ = mkdtemp(pattern.data());
    log_ = absl::StrCat(root_, ".log");
  }

  // Trainers of all ranks, which wait after the third of six steps.
  void PauseAll() {
    StartServer();
    for (int rank = 0; rank < kWorldSize; ++rank) {
      Add(rank, {"--steps=6", "--pause_after=3", "--elements=300000", "--wait_for_trainers"});
    }
    for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "paused");
  }
  void FinishAll() {
    for (int rank = 0; rank < kWorldSize; ++rank) cluster_->trainer(rank).Release();
    for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "done");
  }

  // Trainers of all ranks, each with its owner.
  void StartEmbedded(const std::vector<std::string>& arguments) {
    cluster_options_.world_size = kWorldSize;
    auto cluster = testing::MiniCluster::Start(cluster_options_);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    ASSERT_EQ(cluster_->AddTrainers(Embedded(arguments)), absl::OkStatus());
  }
  static std::vector<std::string> Embedded(const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {"--policy=balanced", "--elements=300000", "--steps=6"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
  }
  void StopAll() {
    cluster_.reset();
    added_ = 0;
  }

  // Saves again, and calls `kill` once the owners have opened their snapshots. Whether the save
  // came to its end.
  bool SaveAndKill(const std::function<void()>& kill) {
    const auto call = Save();
    EXPECT_EQ(call->AwaitOpened(absl::Seconds(30)), absl::OkStatus());
    kill();
    const auto saved = call->Await(absl::Seconds(30));
    EXPECT_NE(saved.status().code(), absl::StatusCode::kDeadlineExceeded) << saved.status();
    return saved.ok();
  }

  // What the coordinator lists, by name.
  std::map<std::string, v1::CheckpointSummary> Listed() {
    const auto stub = v1::Checkpoints::NewStub(MakeChannel(cluster_->coordinator_address()));
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(absl::Seconds(30)));
    v1::ListCheckpointsRequest request;
    request.set_directory(root_);
    v1::ListCheckpointsResponse response;
    const grpc::Status status = stub->ListCheckpoints(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::map<std::string, v1::CheckpointSummary> listed;
    for (const v1::CheckpointSummary& each : response.checkpoints()) listed[each.name()] = each;
    return listed;
  }

  std::unique_ptr<CheckpointCall> Save() {
    CheckpointCall::Request request;
    request.coordinator = cluster_->coordinator_address();
    request.directory = root_;
    return CheckpointCall::Start(request);
  }

  // Looks until it is so.
  void Await(const std::string& what, const std::function<bool()>& is_so) {
    const absl::Time deadline = Deadline();
    while (!is_so()) {
      ASSERT_LT(absl::Now(), deadline) << "waited for " << what << "; the coordinator said:\n"
                                       << CoordinatorLog();
      absl::SleepFor(absl::Milliseconds(10));
    }
  }

  std::string CoordinatorLog() const {
    std::ifstream file(log_);
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }

  // How many are committed; each of them is whole.
  int Committed() {
    PosixFileSystem files;
    const auto root = files.OpenDirectory(root_);
    EXPECT_TRUE(root.ok()) << root.status();
    const auto entries = ListCheckpoints(**root);
    EXPECT_TRUE(entries.ok()) << entries.status();
    int committed = 0;
    for (const CheckpointEntry& entry : *entries) {
      if (entry.state == CheckpointState::kUncommitted) continue;
      EXPECT_EQ(entry.state, CheckpointState::kCommitted) << entry.problem;
      ++committed;
      VerifyOptions options;
      options.step = entry.parsed.step;
      const auto directory = (*root)->OpenDirectory(entry.name);
      const auto damages = VerifyCheckpoint(**directory, options);
      EXPECT_TRUE(damages.ok()) << damages.status();
      EXPECT_TRUE(damages.ok() && damages->empty()) << entry.name;
    }
    return committed;
  }

  std::string root_;
  std::string log_;  // of a coordinator that is to write there
};

TEST_F(CheckpointTest, OfAttachedTrainers_IsSavedForAnybodyAtTheStepThatTheyHaveFinished) {
  PauseAll();
  const auto saved = Save()->Await(absl::Seconds(30));
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->step, 3);
  EXPECT_EQ(saved->directory, root_);
  EXPECT_EQ(saved->name, "step-000000000003");
  EXPECT_EQ(Committed(), 1);
  // Anybody can read the state, too.
  OptimizerClient::Options options;
  options.coordinator = cluster_->coordinator_address();
  const auto client = OptimizerClient::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  std::vector<std::vector<char>> slots;
  std::vector<char*> places;
  for (const OptimizerClient::Slot& slot : (*client)->slots()) {
    slots.emplace_back(static_cast<size_t>(slot.bytes()));
    places.push_back(slots.back().data());
  }
  const auto pulled = (*client)->ReadState(places, {});
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->step, 3);
  FinishAll();
}

TEST_F(CheckpointTest, Kill_ServerWhileItSaves_LosesNothingThatWasCommitted) {
  PauseAll();
  ASSERT_EQ(Save()->Await(absl::Seconds(30)).status(), absl::OkStatus());
  for (int kill_after = 0; kill_after < 3; ++kill_after) {
    const auto call = Save();
    // Before it has opened its snapshots, then while it writes, then at any moment.
    if (kill_after == 1) call->AwaitOpened(absl::Seconds(30)).IgnoreError();
    const auto process = cluster_->ServerProcess(0);
    ASSERT_TRUE(process.ok()) << process.status();
    ASSERT_EQ(kill(*process, SIGKILL), 0);
    const auto saved = call->Await(absl::Seconds(30));
    EXPECT_NE(saved.status().code(), absl::StatusCode::kDeadlineExceeded) << saved.status();
    EXPECT_GE(Committed(), 1);
    // The keeper's next server has the state.
    const absl::Time deadline = Deadline();
    absl::Status again = absl::UnavailableError("not yet");
    while (!again.ok() && absl::Now() < deadline) {
      again = Save()->Await(absl::Seconds(30)).status();
    }
    EXPECT_EQ(again, absl::OkStatus());
  }
  FinishAll();
}

TEST_F(CheckpointTest, CoordinatorThatSavesEveryFiveSteps_DoesWhileNobodyAsks) {
  cluster_options_.coordinator_arguments = {absl::StrCat("--checkpoint-dir=", root_),
                                            "--checkpoint-every=5"};
  cluster_options_.coordinator_output = open(log_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  StartServer();
  close(cluster_options_.coordinator_output);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    Add(rank, {"--steps=10", "--pause_after=3,8", "--elements=300000", "--wait_for_trainers"});
  }
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(Event(rank, "paused").at("step"), 3);
  // Multiples count that are finished after its first look.
  ASSERT_NO_FATAL_FAILURE(Await("the coordinator's first look at the optimizer", [&] {
    return absl::StrContains(CoordinatorLog(), "saves optimizer \"default\" about every 5 steps");
  }));
  EXPECT_EQ(Committed(), 0);
  for (int rank = 0; rank < kWorldSize; ++rank) cluster_->trainer(rank).Resume();
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(Event(rank, "paused").at("step"), 8);
  ASSERT_NO_FATAL_FAILURE(
      Await("a checkpoint of step 5 or a later one", [&] { return Committed() > 0; }));
  PosixFileSystem files;
  const auto root = files.OpenDirectory(root_);
  ASSERT_TRUE(root.ok()) << root.status();
  const auto entries = ListCheckpoints(**root);
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 1u);
  // Step 5 is past, most likely, when the coordinator looks again.
  EXPECT_THAT(entries->front().parsed.step, AllOf(Ge(5u), Le(8u)));
  FinishAll();
}

// Killed in the middle of an update, with one call all go on as if nothing had happened. Ranks of
// another server learn that the step is torn, and load, while those of the killed one step again.
TEST_F(CheckpointTest, Kill_ServerWhileItAppliesAStep_GoesOnFromTheCheckpointWithTheSameBits) {
  const std::vector<std::string> arguments = {"--steps=24", "--pause_after=3", "--elements=1500000",
                                              "--wait_for_trainers",
                                              absl::StrCat("--load_torn=", root_)};
  std::string expected;
  const auto run = [&](bool disturbed, int servers) {
    SCOPED_TRACE(absl::StrCat("disturbed: ", disturbed, ", servers: ", servers));
    if (servers == 1) {
      StartServer();
    } else {
      StartServer({"--plane=gloo"}, "0-1");
    }
    for (int rank = 0; rank < kWorldSize; ++rank) {
      if (servers == 2 && rank == 2) attach_ = cluster_->AddServer("2", {"--plane=gloo"}).value();
      Add(rank, arguments);
    }
    for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "paused");
    if (disturbed) {
      ASSERT_EQ(Save()->Await(absl::Seconds(30)).status(), absl::OkStatus());
    }
    for (int rank = 0; rank < kWorldSize; ++rank) cluster_->trainer(rank).Release();
    if (disturbed) {
      StopServerWhen(testing::IsTorn, servers == 1 ? kWorldSize : 2);
      ASSERT_EQ(kill(cluster_->ServerProcess(0).value(), SIGKILL), 0);
    }
    for (int rank = 0; rank < kWorldSize; ++rank) {
      if (disturbed) {
        const nlohmann::json loaded = Event(rank, "loaded");
        EXPECT_EQ(loaded.at("step"), 3) << loaded;
      }
      const std::string checksum = Event(rank, "done").at("checksum").dump();
      if (!disturbed) expected = checksum;
      EXPECT_EQ(checksum, expected);
    }
    cluster_.reset();
    added_ = 0;
  };
  run(/*disturbed=*/false, /*servers=*/1);
  for (const int servers : {1, 2}) run(/*disturbed=*/true, servers);
}

TEST_F(CheckpointTest, Kill_AttachedTrainerWhileItSaves_ItsSuccessorGoesOnAndIsSaved) {
  const std::vector<std::string> arguments = {"--steps=6", "--pause_after=3,6", "--elements=300000",
                                              "--wait_for_trainers"};
  StartServer();
  for (int rank = 0; rank < kWorldSize; ++rank) Add(rank, arguments);
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "paused");
  const int saved = SaveAndKill([this] { Kill(1); }) ? 1 : 0;
  EXPECT_EQ(Committed(), saved);
  const std::vector<int> trainers = {0, 2, Add(1, arguments)};
  for (const int trainer : {0, 2}) cluster_->trainer(trainer).Resume();
  for (const int trainer : trainers) EXPECT_EQ(Event(trainer, "paused").at("step"), 6);
  const auto again = Save()->Await(absl::Seconds(30));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->step, 6);
  EXPECT_EQ(Committed(), saved + 1);
  for (const int trainer : trainers) cluster_->trainer(trainer).Release();
  for (const int trainer : trainers) Event(trainer, "done");
}

TEST_F(CheckpointTest, Kill_EmbeddedRankWhileItSaves_LosesNothingAndNewOnesGoOn) {
  StartEmbedded({});
  const std::string expected = Event(0, "done").at("checksum").dump();
  StopAll();
  StartEmbedded({"--pause_after=3"});
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "paused");
  ASSERT_EQ(Save()->Await(absl::Seconds(30)).status(), absl::OkStatus());
  const bool saved = SaveAndKill([this] { Kill(1); });
  EXPECT_EQ(Committed(), saved ? 2 : 1);
  StopAll();
  StartEmbedded({absl::StrCat("--load_checkpoint=", root_)});
  for (int rank = 0; rank < kWorldSize; ++rank) {
    EXPECT_EQ(Event(rank, "loaded").at("step"), 3);
    EXPECT_EQ(Event(rank, "done").at("checksum").dump(), expected);
  }
}

// Under one coordinator, and in one process each but for the rank that was killed.
TEST_F(CheckpointTest, Kill_EmbeddedRank_TheJobBeginsAnewFromTheCheckpoint) {
  const std::string from = absl::StrCat("--load_torn=", root_);
  for (const bool share : {false, true}) {
    SCOPED_TRACE(absl::StrCat("one copy of the parameters: ", share));
    std::vector<std::string> arguments;
    if (share) arguments.push_back("--share_parameters");
    StartEmbedded(arguments);
    const std::string expected = Event(0, "done").at("checksum").dump();
    StopAll();
    arguments.insert(arguments.end(), {"--pause_after=3", from, "--load_broken"});
    for (int victim = 0; victim < 2; ++victim) {
      StartEmbedded(arguments);
      for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "paused");
      ASSERT_EQ(Save()->Await(absl::Seconds(30)).status(), absl::OkStatus());
      Kill(victim);
      std::vector<int> trainers;
      for (int rank = 0; rank < kWorldSize; ++rank) {
        if (rank == victim) continue;
        cluster_->trainer(rank).Release();
        EXPECT_EQ(Event(rank, "torn").at("ranks"), nlohmann::json({victim}));
        trainers.push_back(rank);
      }
      std::vector<std::string> of_successor = {absl::StrCat("--load_checkpoint=", root_)};
      if (share) of_successor.push_back("--share_parameters");
      ASSERT_EQ(cluster_->AddTrainer(victim, Embedded(of_successor)), absl::OkStatus());
      trainers.push_back(kWorldSize);
      for (const int trainer : trainers) {
        EXPECT_EQ(Event(trainer, "loaded").at("step"), 3);
        EXPECT_EQ(Event(trainer, "done").at("checksum").dump(), expected);
      }
      StopAll();
    }
  }
}

TEST_F(CheckpointTest, Kill_CoordinatorWhileItSaves_ANewOneListsSavesAndGoesOn) {
  const std::string expected =
      Undisturbed({"--steps=6", "--elements=300000", "--wait_for_trainers"});
  PauseAll();
  ASSERT_EQ(Save()->Await(absl::Seconds(30)).status(), absl::OkStatus());
  const bool saved = SaveAndKill([this] { cluster_->coordinator().Signal(SIGKILL); });
  // The coordinator may have committed it, and have said nothing any more.
  const int committed = Committed();
  EXPECT_GE(committed, saved ? 2 : 1);
  StopAll();
  StartServer();
  for (int rank = 0; rank < kWorldSize; ++rank) {
    Add(rank, {"--steps=6", "--pause_after=5", "--elements=300000", "--wait_for_trainers",
               absl::StrCat("--load_checkpoint=", root_)});
  }
  for (int rank = 0; rank < kWorldSize; ++rank) {
    EXPECT_EQ(Event(rank, "loaded").at("step"), 3);
    EXPECT_EQ(Event(rank, "paused").at("step"), 5);
  }
  EXPECT_EQ(Listed().count("step-000000000003"), 1u);
  const auto next = Save()->Await(absl::Seconds(30));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->name, "step-000000000005");
  EXPECT_EQ(Listed().count(next->name), 1u);
  EXPECT_EQ(Committed(), committed + 1);
  for (int rank = 0; rank < kWorldSize; ++rank) cluster_->trainer(rank).Release();
  for (int rank = 0; rank < kWorldSize; ++rank) {
    EXPECT_EQ(Event(rank, "done").at("checksum").dump(), expected);
  }
}

}  // namespace
}  // namespace optshard

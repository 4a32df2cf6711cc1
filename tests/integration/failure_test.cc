// Ranks that are killed or stopped during steps, as real processes over every plane: the others are
// told who, soon, and a step that it tore is known as torn.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "proto/optshard/v1/coordinator.grpc.pb.h"
#include "proto/optshard/v1/shard_owner.grpc.pb.h"
#include "tests/testing/mini_cluster.h"
#include "tests/testing/trainers_run.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;
using testing::MiniCluster;
using testing::TestTrainer;

constexpr int kWorldSize = 3;
constexpr absl::Duration kNoticed = absl::Seconds(2);
constexpr absl::Duration kLease = absl::Seconds(2);

absl::Time Deadline() { return absl::Now() + absl::Seconds(60); }

// What a survivor said, in order, up to its error.
struct Survivor {
  int finished = 0;    // the last step that returned
  std::string before;  // checksum of the parameters before the step that failed
  nlohmann::json error;
  std::string owner_address;
};

class FailureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::TrainersRun()) GTEST_SKIP() << testing::kTrainersCannotRun;
  }

  // Steps of some 5.3 million parameters, so that most of the time is spent inside them.
  // `of_victim` are arguments that only this rank gets.
  void StartAndStep(const std::vector<std::string>& more = {}, int victim = 0,
                    const std::vector<std::string>& of_victim = {}) {
    for (Survivor& survivor : survivors_) survivor = Survivor();
    MiniCluster::Options options;
    options.world_size = kWorldSize;
    options.coordinator_arguments = {"--lease=" + absl::FormatDuration(kLease)};
    auto cluster = MiniCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    for (int rank = 0; rank < kWorldSize; ++rank) {
      std::vector<std::string> arguments = {"--hold", "--steps=1000000", "--elements=2000000"};
      arguments.insert(arguments.end(), more.begin(), more.end());
      if (rank == victim) {
        arguments.insert(arguments.end(), of_victim.begin(), of_victim.end());
      }
      ASSERT_EQ(cluster_->AddTrainer(rank, arguments), absl::OkStatus());
    }
    for (int rank = 0; rank < kWorldSize; ++rank) {
      const auto joined = cluster_->trainer(rank).WaitFor("joined", Deadline());
      ASSERT_TRUE(joined.ok()) << joined.status();
      survivors_[rank].owner_address = joined->at("owner_address");
    }
    for (int rank = 0; rank < kWorldSize; ++rank) {
      ASSERT_TRUE(cluster_->trainer(rank).WaitFor("step", Deadline()).ok());
    }
  }

  // Sends the signal and collects what the others say about it.
  void Hit(int victim, int signal, absl::Duration noticed) {
    cluster_->trainer(victim).process().Signal(signal);
    CollectErrors(victim, noticed);
  }

  // The others' errors about what has just happened to the victim.
  void CollectErrors(int victim, absl::Duration noticed) {
    const int64_t hit_us = absl::ToUnixMicros(Clock::Monotonic().Now());
    for (int rank = 0; rank < kWorldSize; ++rank) {
      if (rank == victim) continue;
      const auto error = cluster_->trainer(rank).WaitFor("error", Deadline());
      ASSERT_TRUE(error.ok()) << error.status();
      Survivor& survivor = survivors_[rank];
      ReadHistory(cluster_->trainer(rank).output(), survivor);
      survivor.error = *error;
      EXPECT_THAT(error->at("message").get<std::string>(),
                  HasSubstr(absl::StrCat("rank ", victim)));
      EXPECT_LE(absl::Microseconds(error->at("at_us").get<int64_t>() - hit_us), noticed) << *error;
    }
  }

  static void ReadHistory(const std::string& output, Survivor& survivor) {
    size_t begin = 0;
    for (size_t end; (end = output.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const nlohmann::json line = nlohmann::json::parse(output.substr(begin, end - begin), nullptr,
                                                        /*allow_exceptions=*/false);
      if (!line.is_object()) continue;
      if (line.at("event") == "stepping") survivor.before = line.at("checksum").dump();
      if (line.at("event") == "step") survivor.finished = line.at("step");
    }
  }

  // A step is applied by all or by none, or that it is neither is known and nothing is given out.
  void CheckInvariants(int victim) {
    int most_finished = 0;
    for (int rank = 0; rank < kWorldSize; ++rank) {
      if (rank != victim) most_finished = std::max(most_finished, survivors_[rank].finished);
    }
    for (int rank = 0; rank < kWorldSize; ++rank) {
      if (rank == victim) continue;
      SCOPED_TRACE(absl::StrCat("rank ", rank, " of victim ", victim));
      const Survivor& survivor = survivors_[rank];
      const std::string code = survivor.error.at("code");
      if (code == "DATA_LOSS") {
        EXPECT_TRUE(survivor.error.at("torn") || survivor.error.at("in_doubt")) << survivor.error;
      } else {
        EXPECT_TRUE(code == "UNAVAILABLE" || code == "DEADLINE_EXCEEDED") << survivor.error;
        EXPECT_EQ(survivor.error.at("checksum").dump(), survivor.before)
            << "not applied, but the parameters changed";
        EXPECT_EQ(survivor.finished, most_finished) << "applied elsewhere, but not known here";
      }
    }
  }

  // The state is given out unless the step is torn or in doubt.
  void CheckSlots(int victim) {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      if (rank == victim) continue;
      const bool lost = survivors_[rank].error.at("code") == "DATA_LOSS";
      EXPECT_EQ(ReadSlot(survivors_[rank].owner_address).error_code(),
                lost ? grpc::StatusCode::DATA_LOSS : grpc::StatusCode::OK)
          << "rank " << rank;
    }
  }

  // The beginning of a slot that the owner at this address has.
  grpc::Status ReadSlot(const std::string& owner_address) {
    const auto stub = v1::ShardOwner::NewStub(
        grpc::CreateChannel(owner_address, grpc::InsecureChannelCredentials()));
    v1::ListParametersRequest list;
    v1::ListParametersResponse listed;
    grpc::ClientContext list_context;
    grpc::Status status = stub->ListParameters(&list_context, list, &listed);
    if (!status.ok()) return status;
    EXPECT_GT(listed.parameters_size(), 0);
    v1::ReadSlotRequest request;
    request.set_name(listed.parameters(0).name());
    request.set_offset_elements(listed.parameters(0).offset_elements());
    request.set_slot("exp_avg");
    request.set_elements(100);
    grpc::ClientContext context;
    const auto stream = stub->ReadSlot(&context, request);
    v1::SlotChunk chunk;
    while (stream->Read(&chunk)) {
    }
    return stream->Finish();
  }

  // Until the coordinator says of the job's group that it has failed.
  void AwaitGroupFailed() {
    const auto stub = v1::Coordinator::NewStub(
        grpc::CreateChannel(cluster_->coordinator_address(), grpc::InsecureChannelCredentials()));
    const absl::Time deadline = Deadline();
    while (absl::Now() < deadline) {
      grpc::ClientContext context;
      v1::JobStatus job;
      const grpc::Status status = stub->GetStatus(&context, v1::GetStatusRequest(), &job);
      ASSERT_TRUE(status.ok()) << status.error_message();
      if (job.groups(0).state() == v1::GROUP_STATE_FAILED) return;
      absl::SleepFor(absl::Milliseconds(5));
    }
    FAIL() << "the coordinator has not noticed the loss";
  }

  void ExpectOfOthers(int victim, const std::string& code) {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(survivors_[rank].error.at("code"), code) << survivors_[rank].error;
    }
  }

  void EndSurvivors(int victim) {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      if (rank == victim) continue;
      TestTrainer& trainer = cluster_->trainer(rank);
      trainer.Release();
      const auto code = trainer.process().Wait(Deadline());
      ASSERT_TRUE(code.ok()) << code.status();
      EXPECT_EQ(*code, 1) << trainer.output();
    }
  }

  std::unique_ptr<MiniCluster> cluster_;
  Survivor survivors_[kWorldSize];
};

// Gloo, shared memory with copies, and in one pass.
const std::vector<std::string> kWays[] = {
    {"--plane=gloo"}, {"--plane=shm", "--policy=balanced", "--bucket_view=off"}, {"--plane=shm"}};

// Wherever it strikes. The two tests that follow are sure of what it strikes.
TEST_F(FailureTest, Kill_DuringSteps_IsNamedToBothOthersSoonAndATornStepIsKnown) {
  for (int trial = 0; trial < kWorldSize; ++trial) {
    const int victim = trial;
    SCOPED_TRACE(absl::StrJoin(kWays[trial], " "));
    ASSERT_NO_FATAL_FAILURE(StartAndStep(kWays[trial]));
    absl::SleepFor(absl::Milliseconds(20 * trial));
    ASSERT_NO_FATAL_FAILURE(Hit(victim, SIGKILL, kNoticed));
    CheckInvariants(victim);
    CheckSlots(victim);
    EndSurvivors(victim);
  }
}

// It dies at the instruction that writes to one of its parameters.
TEST_F(FailureTest, Die_WhileAStepIsApplied_IsDataLossForBothOthersSoon) {
  for (int trial = 0; trial < kWorldSize; ++trial) {
    const int victim = (trial + 1) % kWorldSize;
    SCOPED_TRACE(absl::StrJoin(kWays[trial], " "));
    ASSERT_NO_FATAL_FAILURE(StartAndStep(kWays[trial], victim, {"--die_applying=3"}));
    const auto ended = cluster_->trainer(victim).process().Wait(Deadline());
    ASSERT_TRUE(ended.ok()) << ended.status();
    ASSERT_EQ(*ended, 128 + SIGSEGV);
    ASSERT_NO_FATAL_FAILURE(CollectErrors(victim, kNoticed));
    ExpectOfOthers(victim, "DATA_LOSS");
    CheckInvariants(victim);
    CheckSlots(victim);
    EndSurvivors(victim);
  }
}

// The others hear of the loss before they ask for the step: nobody can have begun it.
TEST_F(FailureTest, Kill_BetweenSteps_IsNamedToBothOthersAndNothingHasChanged) {
  for (int trial = 0; trial < kWorldSize; ++trial) {
    const int victim = (trial + 2) % kWorldSize;
    SCOPED_TRACE(absl::StrJoin(kWays[trial], " "));
    std::vector<std::string> paused = kWays[trial];
    paused.push_back("--pause_after=3");
    ASSERT_NO_FATAL_FAILURE(StartAndStep(paused));
    for (int rank = 0; rank < kWorldSize; ++rank) {
      ASSERT_TRUE(cluster_->trainer(rank).WaitFor("paused", Deadline()).ok());
    }
    cluster_->trainer(victim).process().Signal(SIGKILL);
    ASSERT_NO_FATAL_FAILURE(AwaitGroupFailed());
    for (int rank = 0; rank < kWorldSize; ++rank) {
      if (rank != victim) cluster_->trainer(rank).Release();
    }
    ASSERT_NO_FATAL_FAILURE(CollectErrors(victim, kNoticed));
    ExpectOfOthers(victim, "UNAVAILABLE");
    CheckInvariants(victim);
    EndSurvivors(victim);
  }
}

TEST_F(FailureTest, Stop_DuringSteps_IsNamedToBothOthersSoonAfterTheLease) {
  for (const int victim : {0, 2}) {
    ASSERT_NO_FATAL_FAILURE(StartAndStep({victim == 0 ? "--plane=gloo" : "--plane=shm"}));
    ASSERT_NO_FATAL_FAILURE(Hit(victim, SIGSTOP, kLease + kNoticed));
    CheckInvariants(victim);
    CheckSlots(victim);
    EndSurvivors(victim);
  }
}

// The coordinator is not on the path of a step.
TEST_F(FailureTest, Kill_Coordinator_StepsGoOn) {
  ASSERT_NO_FATAL_FAILURE(StartAndStep());
  cluster_->coordinator().Signal(SIGKILL);
  ASSERT_TRUE(cluster_->coordinator().Wait(Deadline()).ok());
  for (int step = 0; step < 20; ++step) {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      const auto stepped = cluster_->trainer(rank).WaitFor("step", Deadline());
      ASSERT_TRUE(stepped.ok()) << stepped.status();
    }
  }
  cluster_->trainer(1).process().Signal(SIGKILL);
  for (const int rank : {0, 2}) {
    const auto error = cluster_->trainer(rank).WaitFor("error", Deadline());
    ASSERT_TRUE(error.ok()) << error.status();
    EXPECT_THAT(error->at("message").get<std::string>(), HasSubstr("rank 1"));
  }
}

}  // namespace
}  // namespace optshard

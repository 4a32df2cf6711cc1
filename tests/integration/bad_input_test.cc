// What real processes say about jobs that cannot work: a clear error on every rank concerned, by a
// deadline, and an exit code that is not zero.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/mini_cluster.h"
#include "tests/testing/trainers_run.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MiniCluster;
using testing::TestTrainer;

absl::Time Deadline() { return absl::Now() + absl::Seconds(60); }

class BadInputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::TrainersRun()) GTEST_SKIP() << testing::kTrainersCannotRun;
  }

  void StartCluster(int world_size, const std::vector<std::string>& coordinator_arguments = {},
                    bool coordinator = true) {
    MiniCluster::Options options;
    options.world_size = world_size;
    options.coordinator = coordinator;
    options.coordinator_arguments = coordinator_arguments;
    auto cluster = MiniCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }

  TestTrainer& Add(int rank, const std::vector<std::string>& arguments) {
    EXPECT_EQ(cluster_->AddTrainer(rank, arguments), absl::OkStatus());
    return cluster_->trainer(added_++);
  }

  // Its error, once it has ended with it.
  nlohmann::json ErrorOf(TestTrainer& trainer) {
    const auto error = trainer.WaitFor("error", Deadline());
    EXPECT_TRUE(error.ok()) << error.status();
    EXPECT_NE(*trainer.process().Wait(Deadline()), 0);
    return error.ok() ? *error : nlohmann::json();
  }

  std::unique_ptr<MiniCluster> cluster_;
  int added_ = 0;
};

TEST_F(BadInputTest, Join_ParameterListsDiffer_ShowsTheFirstDifferenceOnAllRanks) {
  StartCluster(3);
  std::vector<TestTrainer*> trainers;
  for (int rank = 0; rank < 3; ++rank) {
    trainers.push_back(&Add(rank, {rank == 1 ? "--first_name=fc.bias" : "--first_name=fc.weight"}));
  }
  for (TestTrainer* trainer : trainers) {
    const nlohmann::json error = ErrorOf(*trainer);
    EXPECT_EQ(error.at("code"), "INVALID_ARGUMENT");
    EXPECT_THAT(error.at("message").get<std::string>(),
                AllOf(HasSubstr("\"fc.weight\""), HasSubstr("\"fc.bias\""), HasSubstr("rank 1")));
  }
}

TEST_F(BadInputTest, Join_OtherWorldSize_IsToldBothAndTheOthersWhoIsMissing) {
  StartCluster(2, {"--join_timeout=3s"});
  TestTrainer& right = Add(0, {});
  TestTrainer& wrong = Add(1, {"--world_size=3"});
  const nlohmann::json error = ErrorOf(wrong);
  EXPECT_EQ(error.at("code"), "INVALID_ARGUMENT");
  EXPECT_THAT(error.at("message").get<std::string>(),
              AllOf(HasSubstr("world size is 3"), HasSubstr("the coordinator 2")));
  EXPECT_THAT(ErrorOf(right).at("ranks").get<std::vector<int>>(), ElementsAre(1));
}

TEST_F(BadInputTest, Join_RankOutOfRange_IsAnError) {
  StartCluster(2);
  const nlohmann::json error = ErrorOf(Add(2, {}));
  EXPECT_EQ(error.at("code"), "INVALID_ARGUMENT");
  EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("rank is 2 and world_size is 2,"));
}

TEST_F(BadInputTest, Join_RankTwice_SecondIsRefusedAndTheJobGoesOn) {
  StartCluster(2);
  TestTrainer& first = Add(0, {"--hold"});
  TestTrainer& other = Add(1, {"--hold"});
  ASSERT_TRUE(first.WaitFor("joined", Deadline()).ok());
  const nlohmann::json error = ErrorOf(Add(1, {}));
  EXPECT_EQ(error.at("code"), "ALREADY_EXISTS");
  EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("rank 1 of optimizer"));
  for (TestTrainer* trainer : {&first, &other}) {
    EXPECT_TRUE(trainer->WaitFor("done", Deadline()).ok());
    trainer->Release();
  }
  for (TestTrainer* trainer : {&first, &other}) {
    EXPECT_EQ(*trainer->process().Wait(Deadline()), 0) << trainer->output();
  }
}

TEST_F(BadInputTest, Join_RankNeverComes_IsNamedToAllAfterTheCoordinatorsDeadline) {
  StartCluster(3, {"--join_timeout=5s"});
  TestTrainer& first = Add(0, {});
  TestTrainer& second = Add(2, {});
  for (TestTrainer* trainer : {&first, &second}) {
    const nlohmann::json error = ErrorOf(*trainer);
    EXPECT_EQ(error.at("code"), "DEADLINE_EXCEEDED");
    EXPECT_THAT(error.at("ranks").get<std::vector<int>>(), ElementsAre(1)) << error;
  }
}

TEST_F(BadInputTest, Join_RanksNeverCome_AreNamedAfterTheRanksOwnDeadline) {
  StartCluster(3);
  const nlohmann::json error = ErrorOf(Add(1, {"--join_timeout_ms=1500"}));
  EXPECT_EQ(error.at("code"), "DEADLINE_EXCEEDED");
  EXPECT_THAT(error.at("ranks").get<std::vector<int>>(), ElementsAre(0, 2)) << error;
}

TEST_F(BadInputTest, Join_NoCoordinator_NamesTheAddress) {
  StartCluster(2, {}, /*coordinator=*/false);
  const nlohmann::json error = ErrorOf(Add(0, {"--join_timeout_ms=1500"}));
  EXPECT_EQ(error.at("code"), "UNAVAILABLE");
  EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr(cluster_->coordinator_address()));
}

TEST_F(BadInputTest, Construct_UnknownRule_ListsTheKnownOnes) {
  StartCluster(2);
  const nlohmann::json error = ErrorOf(Add(0, {"--rule=adagrid"}));
  EXPECT_EQ(error.at("code"), "INVALID_ARGUMENT");
  EXPECT_THAT(error.at("message").get<std::string>(),
              AllOf(HasSubstr("\"adagrid\""), HasSubstr("did you mean \"adagrad\"?")));
}

}  // namespace
}  // namespace optshard

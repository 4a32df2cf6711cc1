// What the JobInspection service says of a job: its ranks, owners, groups and steps.

#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/coordinator/inspection/job_inspection_fixture.h"

namespace optshard::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(JobInspectionTest, NobodyHasJoined_SaysSo) {
  const auto description = Describe();
  EXPECT_EQ(description.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(description.status().message(), "job \"optshard\": nobody has joined yet");
}

TEST_F(JobInspectionTest, RanksAreMissing_AreNamed) {
  ASSERT_TRUE(Join(0, Halves(), OwnerAddress()).ok());
  const auto description = Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_THAT(description->summary(), HasSubstr("default forming: 1 of 2 ranks joined, waiting for "
                                                "rank 1"));
  EXPECT_EQ(description->state(), "forming");
  ASSERT_EQ(description->ranks_size(), 2);
  EXPECT_EQ(description->ranks(0).state(), "joined");
  EXPECT_EQ(description->ranks(0).owner_address(), OwnerAddress());
  EXPECT_THAT(description->ranks(0).summary(), HasSubstr("owner at " + OwnerAddress()));
  EXPECT_EQ(description->ranks(1).state(), "missing");
  EXPECT_THAT(description->ranks(1).summary(), HasSubstr("rank 1 missing"));
  EXPECT_EQ(List({}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(JobInspectionTest, TornRankOfAnActiveJob_IsSaid) {
  Start(Halves());
  EXPECT_FALSE(Describe()->torn());
  views_of_[1]->description.progress = {0, StepOutcome::kTorn};
  const auto description = Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_EQ(description->state(), "active");
  EXPECT_TRUE(description->torn());
  EXPECT_THAT(description->summary(),
              HasSubstr("; torn: of rank 1 the state is that of no step, and each step is refused "
                        "until all ranks load a checkpoint"));
  EXPECT_FALSE(description->ranks(0).torn());
  EXPECT_TRUE(description->ranks(1).torn());
  EXPECT_THAT(description->ranks(1).summary(), HasSubstr("torn: its state is that of no step"));
}

TEST_F(JobInspectionTest, OwnerOfAnotherJobAtTheAddress_IsNotBelieved) {
  Start(Halves());
  views_of_[1]->description.member.job = "another";
  const auto description = Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  ASSERT_EQ(description->unanswered_size(), 1);
  EXPECT_THAT(description->unanswered(0).summary(),
              HasSubstr("rank 1 of job \"another\" is served here, not of \"optshard\""));
  EXPECT_EQ(Statistics({})->unanswered_size(), 1);
  EXPECT_EQ(Call(&v1::JobInspection::Stub::ListSteps, v1::ListStepsRequest())->unanswered_size(),
            1);
  EXPECT_EQ(Read("exp_avg", 4000, 5).status().code(), absl::StatusCode::kNotFound);
  views_of_[1]->description.member = {"optshard", kInspectedOptimizer, 1, 1};  // of an earlier life
  EXPECT_THAT(Describe()->unanswered(0).summary(), HasSubstr("ABORTED"));
}

TEST_F(JobInspectionTest, FirstOwnerThatDoesNotAnswer_TheNextOneTells) {
  Start(Halves());
  views_.Unregister(kInspectedOptimizer, 0);
  const auto list = List({});
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->parameters(0).slots(), ElementsAre("exp_avg", "exp_avg_sq", "step"));
  EXPECT_EQ(list->parameters(0).step(), 12);
  EXPECT_EQ(list->unanswered_size(), 1);
  const auto values = Read("exp_avg", 4000, 2);
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(values->values(), ElementsAre(4000, 4001));
  EXPECT_EQ(Read("step", 0, 0)->values_size(), 1);
}

TEST_F(JobInspectionTest, OtherOptimizers_AreListed) {
  Start(Halves());
  v1::DescribeJobRequest request;
  request.set_optimizer("critic");
  EXPECT_EQ(Describe(request).status().message(),
            "job \"optshard\" has no optimizer of that name; it has: \"default\"");
  ASSERT_TRUE(coordinator_->coordinator().Join(TestJoin(0, 2, "critic")).ok());
  EXPECT_TRUE(Describe(request).ok());
  const absl::Status several = Describe().status();
  EXPECT_EQ(several.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(several.message()), HasSubstr("it has: \"critic\", \"default\""));
}

TEST_F(JobInspectionTest, RankInItsStep_WaitsForTheOther) {
  Start(Halves());
  views_of_[1]->description.progress = {12, StepOutcome::kInStep};
  views_of_[1]->description.activity = {RankPhase::kCommit, absl::Milliseconds(1300)};
  views_of_[0]->description.activity = {RankPhase::kIdle, absl::Milliseconds(1400)};
  const auto description = Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  ASSERT_EQ(description->ranks_size(), 2);
  EXPECT_EQ(description->ranks(0).summary(),
            "rank 0 active: finished step 12, idle for 1.4 s (its trainer computes); owns 1 of 1 "
            "parameters, 8.0 KiB, 1.0 KiB of state");
  EXPECT_EQ(description->ranks(1).summary(),
            "rank 1 active: in step 13, voted 1.3 s ago, waits for rank 0; owns 1 of 1 "
            "parameters, 8.0 KiB, 2.0 KiB of state");
  EXPECT_THAT(description->ranks(1).waits_for(), ElementsAre(0));
  EXPECT_EQ(description->ranks(1).waits_for_count(), 1);
  EXPECT_EQ(description->ranks(1).phase(), v1::RANK_PHASE_COMMIT);
  EXPECT_EQ(description->unanswered_size(), 0);
}

TEST_F(JobInspectionTest, BytesOfTheRanks_AreCompared) {
  Start(Halves());
  const auto description = Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_EQ(description->parameters().summary(),
            "parameters a rank: 8.0 KiB (rank 0) to 8.0 KiB (rank 0), the largest 1.000 of the "
            "mean");
  EXPECT_EQ(description->slots().min_bytes(), 1024);
  EXPECT_EQ(description->slots().max_bytes(), 2048);
  EXPECT_EQ(description->slots().max_rank(), 1);
  EXPECT_DOUBLE_EQ(description->slots().max_over_mean(), 4.0 / 3);
}

TEST_F(JobInspectionTest, Ranks_ComeInPages) {
  Start(Halves());
  v1::DescribeJobRequest request;
  request.set_page_size(1);
  auto description = Describe(request);
  ASSERT_TRUE(description.ok()) << description.status();
  ASSERT_EQ(description->ranks_size(), 1);
  EXPECT_EQ(description->next_page_token(), "1");
  request.set_page_token(description->next_page_token());
  description = Describe(request);
  ASSERT_EQ(description->ranks_size(), 1);
  EXPECT_EQ(description->ranks(0).rank(), 1);
  EXPECT_EQ(description->next_page_token(), "");
  request.set_page_token("2");
  EXPECT_EQ(Describe(request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(JobInspectionTest, OwnerThatDoesNotAnswer_IsNamedAndTheRestSaid) {
  Start(Halves());
  views_.Unregister(kInspectedOptimizer, 1);
  const auto description = Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  ASSERT_EQ(description->unanswered_size(), 1);
  EXPECT_EQ(description->unanswered(0).rank(), 1);
  EXPECT_THAT(description->unanswered(0).summary(),
              AllOf(HasSubstr("rank 1 at " + OwnerAddress()), HasSubstr("UNAVAILABLE")));
  ASSERT_EQ(description->ranks_size(), 2);
  EXPECT_THAT(description->ranks(0).summary(), HasSubstr("idle"));
  EXPECT_THAT(description->ranks(1).summary(), HasSubstr("when last heard from"));

  const auto statistics = Statistics({});
  ASSERT_TRUE(statistics.ok()) << statistics.status();
  EXPECT_EQ(statistics->unanswered_size(), 1);
  EXPECT_THAT(statistics->summary(), HasSubstr("1 owner has not answered"));
  EXPECT_THAT(statistics->parameters(0).summary(), HasSubstr("only 2048 of 4096 elements"));
  EXPECT_EQ(Read("exp_avg", 4000, 5).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(JobInspectionTest, OwnerWithoutAnAddress_IsNamed) {
  ASSERT_TRUE(Join(0, Halves(), "").ok());
  ASSERT_TRUE(Join(1, Halves(), "127.0.0.1:1").ok());
  const auto list = List({});
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->unanswered_size(), 2);  // nor does the other owner
  EXPECT_THAT(list->unanswered(0).summary(), HasSubstr("rank 0 at no address"));
  EXPECT_THAT(list->parameters(0).summary(), HasSubstr("its owner has not answered"));
}

TEST_F(JobInspectionTest, OwnerOfAnotherGeneration_CountsAsUnanswered) {
  Start(Halves());
  views_of_[0]->description.generation = 7;
  const auto list = List({});
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->unanswered_size(), 1);
  EXPECT_THAT(list->unanswered(0).summary(), HasSubstr("it is of generation 7, expected 1"));
}

TEST_F(JobInspectionTest, Groups_HaveTheHyperparametersOfTheLastStep) {
  Start(Halves());
  views_of_[0]->description.groups[0].hyperparameters.Set("lr", 0.25);
  const auto groups = Call(&v1::JobInspection::Stub::ListGroups, v1::ListGroupsRequest());
  ASSERT_TRUE(groups.ok()) << groups.status();
  ASSERT_EQ(groups->groups_size(), 1);
  EXPECT_EQ(groups->groups(0).summary(), "group 0: adam, 1 parameters, 4096 elements");
  EXPECT_EQ(groups->groups(0).hyperparameters(), "lr=0.25");
  EXPECT_THAT(groups->summary(), HasSubstr("those of rank 0 at step 12"));
  views_.Unregister(kInspectedOptimizer, 0);
  EXPECT_THAT(Call(&v1::JobInspection::Stub::ListGroups, v1::ListGroupsRequest())->summary(),
              HasSubstr("those of rank 1"));
  views_.Unregister(kInspectedOptimizer, 1);
  EXPECT_EQ(Call(&v1::JobInspection::Stub::ListGroups, v1::ListGroupsRequest()).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(JobInspectionTest, Steps_AreATable) {
  Start(Halves());
  for (Rank rank = 0; rank < 2; ++rank) {
    for (const StepNumber step : {11, 12}) {
      for (const char* phase : {"prepare", "commit", "apply"}) {
        TimelineSpan span;
        span.step = step;
        span.phase = phase;
        span.duration_us = 1000 * static_cast<int64_t>(step) + rank;
        views_of_[rank]->timeline.push_back(span);
      }
    }
  }
  v1::ListStepsRequest request;
  auto steps = Call(&v1::JobInspection::Stub::ListSteps, request);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_THAT(
      steps->table(),
      ElementsAre(
          "    step  rank   prepare    commit     apply    in all    reduce    update   publish  "
          "buckets",
          "      11     0    11.000    11.000    11.000    33.000     0.000     0.000     0.000  "
          "      0",
          "      11     1    11.001    11.001    11.001    33.003     0.000     0.000     0.000  "
          "      0",
          "      12     0    12.000    12.000    12.000    36.000     0.000     0.000     0.000  "
          "      0",
          "      12     1    12.001    12.001    12.001    36.003     0.000     0.000     0.000  "
          "      0"));
  request.add_ranks(1);
  request.set_steps(1);
  steps = Call(&v1::JobInspection::Stub::ListSteps, request);
  EXPECT_EQ(steps->table_size(), 2);
  EXPECT_EQ(steps->summary(), "the last steps of 1 of 2 ranks, in milliseconds");
  request.add_ranks(2);
  EXPECT_EQ(Call(&v1::JobInspection::Stub::ListSteps, request).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(JobInspectionTest, FiveCallsAtOnce_AreOneTooMany) {
  Start(Halves());
  absl::Notification go;
  absl::Mutex mutex;
  int waiting = 0;
  views_of_[0]->read = [&](int64_t, absl::Span<double>) -> absl::StatusOr<StepNumber> {
    absl::MutexLock lock(&mutex);
    ++waiting;
    mutex.Await(absl::Condition(&go, &absl::Notification::HasBeenNotified));
    return StepNumber{1};
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([this] { EXPECT_TRUE(Read("exp_avg", 0, 1).ok()); });
  }
  {
    absl::MutexLock lock(&mutex);
    const auto all_wait = [&waiting] { return waiting == 4; };
    mutex.Await(absl::Condition(&all_wait));
  }
  const absl::Status refused = Describe().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  go.Notify();
  {
    absl::MutexLock lock(&mutex);  // wakes those that wait
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(Describe().ok());
}

}  // namespace
}  // namespace optshard::testing

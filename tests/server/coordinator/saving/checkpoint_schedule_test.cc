#include "server/coordinator/saving/checkpoint_schedule.h"

#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(CheckpointScheduleTest, EachMultiple_IsDueUntilItIsSaved) {
  CheckpointSchedule schedule(10);
  EXPECT_FALSE(schedule.IsDue("default", 0));
  EXPECT_FALSE(schedule.IsDue("default", 9));
  EXPECT_TRUE(schedule.IsDue("default", 11));
  EXPECT_TRUE(schedule.IsDue("default", 12));  // the save was refused
  schedule.Saved("default", 12);
  EXPECT_FALSE(schedule.IsDue("default", 19));
  EXPECT_TRUE(schedule.IsDue("default", 45));
}

TEST(CheckpointScheduleTest, AJobThatIsThereAlready_BeginsWithItsNextMultiple) {
  CheckpointSchedule schedule(10);
  EXPECT_FALSE(schedule.IsDue("default", 25));
  EXPECT_TRUE(schedule.IsDue("default", 30));
  EXPECT_FALSE(schedule.IsDue("discriminator", 30));
}

TEST(CheckpointScheduleTest, AfterGoingBack_StepsComeAgain) {
  CheckpointSchedule schedule(10);
  EXPECT_FALSE(schedule.IsDue("default", 25));
  EXPECT_FALSE(schedule.IsDue("default", 5));
  EXPECT_TRUE(schedule.IsDue("default", 10));
}

// 0: none.
StepNumber Upcoming(CheckpointSchedule& schedule, StepNumber finished, double seconds) {
  const auto upcoming =
      schedule.Upcoming("default", finished, absl::UnixEpoch() + absl::Seconds(seconds));
  return upcoming.has_value() ? upcoming->step : 0;
}

TEST(CheckpointScheduleTest, AMultipleThatComesSoon_IsUpcoming) {
  CheckpointSchedule schedule(1000);
  EXPECT_EQ(Upcoming(schedule, 900, 0), 0) << "no rate yet";
  // 10 steps a second.
  EXPECT_EQ(Upcoming(schedule, 930, 3), 0) << "nor is it known to be steady";
  EXPECT_EQ(Upcoming(schedule, 940, 4), 0);
  EXPECT_EQ(Upcoming(schedule, 950, 5), 1000);
  EXPECT_EQ(Upcoming(schedule, 980, 8), 1000);
  EXPECT_EQ(Upcoming(schedule, 981, 8.1), 0) << "too late to be prepared";
  EXPECT_EQ(Upcoming(schedule, 100, 9), 0);
  EXPECT_EQ(Upcoming(schedule, 850, 28), 0) << "39 steps a second since the job went back";
  EXPECT_EQ(Upcoming(schedule, 890, 29), 1000);
}

TEST(CheckpointScheduleTest, SlowSteps_AreNotLeftOut) {
  CheckpointSchedule schedule(1);
  EXPECT_EQ(Upcoming(schedule, 5, 0), 0);
  EXPECT_EQ(Upcoming(schedule, 6, 10), 0);
  EXPECT_EQ(Upcoming(schedule, 7, 20), 8);
  EXPECT_EQ(Upcoming(schedule, 7, 29), 9) << "8 is too near";
  EXPECT_EQ(Upcoming(schedule, 7, 55), 0) << "nobody steps";
}

TEST(CheckpointScheduleTest, StepsThatALoadBrings_AreNoRate) {
  CheckpointSchedule schedule(1000);
  EXPECT_EQ(Upcoming(schedule, 0, 0), 0);
  EXPECT_EQ(Upcoming(schedule, 50'000, 1), 0);
  EXPECT_EQ(Upcoming(schedule, 50'010, 2), 0);
  EXPECT_EQ(Upcoming(schedule, 50'950, 96), 51'000);
  EXPECT_EQ(Upcoming(schedule, 70'960, 97), 0) << "another load";
  EXPECT_EQ(Upcoming(schedule, 70'970, 98), 0);
  EXPECT_EQ(Upcoming(schedule, 70'980, 99), 71'000);
}

TEST(CheckpointScheduleTest, AStepThatComesTooLate_IsNotAwaitedForLong) {
  const absl::Time start = absl::UnixEpoch();
  CheckpointSchedule schedule(1000);
  schedule.Upcoming("default", 900, start);
  schedule.Upcoming("default", 910, start + absl::Seconds(1));
  const auto upcoming = schedule.Upcoming("default", 960, start + absl::Seconds(6));
  ASSERT_TRUE(upcoming.has_value());
  EXPECT_EQ(upcoming->step, 1000);
  EXPECT_EQ(upcoming->patience, absl::Seconds(5 + 2 * 4));
}

TEST(CheckpointScheduleTest, Every0_IsNever) {
  CheckpointSchedule schedule(0);
  EXPECT_EQ(Upcoming(schedule, 5, 0), 0);
  schedule.Saved("default", 5);
  EXPECT_FALSE(schedule.IsDue("default", 1000));
}

}  // namespace
}  // namespace optshard

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

TEST(CheckpointScheduleTest, AMultipleThatComesSoon_IsUpcoming) {
  const absl::Time start = absl::UnixEpoch();
  CheckpointSchedule schedule(1000);
  EXPECT_EQ(schedule.Upcoming("default", 900, start), absl::nullopt) << "no rate yet";
  // 10 steps a second.
  EXPECT_EQ(schedule.Upcoming("default", 940, start + absl::Seconds(4)), absl::nullopt);
  EXPECT_EQ(schedule.Upcoming("default", 950, start + absl::Seconds(5)), 1000);
  EXPECT_EQ(schedule.Upcoming("default", 980, start + absl::Seconds(8)), 1000);
  EXPECT_EQ(schedule.Upcoming("default", 981, start + absl::Seconds(8.1)), absl::nullopt)
      << "too late to be prepared";
  EXPECT_EQ(schedule.Upcoming("default", 100, start + absl::Seconds(9)), absl::nullopt);
  EXPECT_EQ(schedule.Upcoming("default", 890, start + absl::Seconds(29)), 1000)
      << "39 steps a second since the job went back";
}

TEST(CheckpointScheduleTest, SlowSteps_AreNotLeftOut) {
  const absl::Time start = absl::UnixEpoch();
  CheckpointSchedule schedule(1);
  EXPECT_EQ(schedule.Upcoming("default", 5, start), absl::nullopt);
  EXPECT_EQ(schedule.Upcoming("default", 6, start + absl::Seconds(10)), 7);
  EXPECT_EQ(schedule.Upcoming("default", 6, start + absl::Seconds(19)), 8) << "7 is too near";
  EXPECT_EQ(schedule.Upcoming("default", 6, start + absl::Seconds(45)), absl::nullopt)
      << "nobody steps";
}

TEST(CheckpointScheduleTest, Every0_IsNever) {
  CheckpointSchedule schedule(0);
  EXPECT_EQ(schedule.Upcoming("default", 5, absl::UnixEpoch()), absl::nullopt);
  schedule.Saved("default", 5);
  EXPECT_FALSE(schedule.IsDue("default", 1000));
}

}  // namespace
}  // namespace optshard

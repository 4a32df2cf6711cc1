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

TEST(CheckpointScheduleTest, Every0_IsNever) {
  CheckpointSchedule schedule(0);
  schedule.Saved("default", 5);
  EXPECT_FALSE(schedule.IsDue("default", 1000));
}

}  // namespace
}  // namespace optshard

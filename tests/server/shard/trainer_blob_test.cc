#include "server/shard/trainer_blob.h"

#include <gtest/gtest.h>

namespace optshard {
namespace {

TEST(TrainerBlobTest, BlobOfAStep_CountsOnceTheStepIsFinished) {
  TrainerBlob blob;
  EXPECT_EQ(blob.After(0), "");
  blob.Offer(1, "one");
  EXPECT_EQ(blob.After(0), "");
  EXPECT_EQ(blob.After(1), "one");
  blob.Offer(2, absl::nullopt);
  EXPECT_EQ(blob.After(2), "one");
  blob.Offer(3, "three");
  EXPECT_EQ(blob.After(2), "one");
  EXPECT_EQ(blob.After(3), "three");
}

TEST(TrainerBlobTest, StepThatIsGivenUp_TakesItsBlobWithIt) {
  TrainerBlob blob;
  blob.Offer(1, "one");
  blob.Offer(2, "of a step that is given up");
  blob.Offer(2, absl::nullopt);
  EXPECT_EQ(blob.After(2), "one");
}

TEST(TrainerBlobTest, SkippedCall_LeavesItsBlobToTheStepBefore) {
  TrainerBlob blob;
  blob.Offer(5, "five");
  blob.Offer(6, "of a skipped call");
  blob.MoveOffer(5);
  EXPECT_EQ(blob.After(5), "of a skipped call");
  blob.Offer(6, absl::nullopt);
  blob.MoveOffer(5);
  EXPECT_EQ(blob.After(5), "of a skipped call");
}

TEST(TrainerBlobTest, ReplacedByAnEarlierStep_IsThatOfTheLoadedState) {
  TrainerBlob blob;
  blob.Offer(9, "nine");
  blob.Offer(10, "ten");
  blob.Replace(5, "loaded");
  EXPECT_EQ(blob.After(5), "loaded");
  blob.Offer(6, absl::nullopt);
  EXPECT_EQ(blob.After(10), "loaded");
}

}  // namespace
}  // namespace optshard

#include "server/node/step_bytes.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace optshard {
namespace {

constexpr size_t kMost = 100;

class StepBytesTest : public ::testing::Test {
 protected:
  struct alignas(64) Line {
    char bytes[64];
  };

  StepBytesTest() : memory_((StepBytes::Bytes(kMost) + 63) / 64) {}

  // Always another one: what it knows is in the memory.
  StepBytes kept() { return StepBytes(memory_.data(), kMost); }

  std::vector<Line> memory_;
};

TEST_F(StepBytesTest, Offered_Counts_OnceItsStepIsFinished) {
  EXPECT_EQ(kept().After(10).step, 0u);
  kept().Offer(1, "one");
  EXPECT_EQ(kept().After(0).bytes, "");
  EXPECT_EQ(kept().After(1).bytes, "one");
  kept().OfferNothing(2);
  EXPECT_EQ(kept().After(2).bytes, "one");
  EXPECT_EQ(kept().After(2).step, 1u);
  kept().Offer(3, "three");
  EXPECT_EQ(kept().After(2).bytes, "one") << "step 3 is not finished";
  EXPECT_EQ(kept().After(3).bytes, "three");
}

TEST_F(StepBytesTest, OfferOfAStepThatWasGivenUp_IsForgotten) {
  kept().Offer(1, "one");
  kept().Offer(2, "two, given up");
  kept().OfferNothing(2);
  EXPECT_EQ(kept().After(2).bytes, "one");
  kept().Offer(3, "three, given up");
  kept().Offer(3, "three");
  EXPECT_EQ(kept().After(2).bytes, "one");
  EXPECT_EQ(kept().After(3).bytes, "three");
}

// Steps that come again after an earlier one was loaded do not bring their old bytes back.
TEST_F(StepBytesTest, Cleared_HasWhatIsOfferedThenAlone) {
  kept().Offer(9, "nine");
  kept().Offer(10, "ten");
  kept().Clear();
  EXPECT_EQ(kept().After(10).step, 0u);
  kept().Offer(5, "loaded");
  EXPECT_EQ(kept().After(5).bytes, "loaded");
  EXPECT_EQ(kept().After(4).bytes, "");
  EXPECT_EQ(kept().After(10).bytes, "loaded");
  kept().OfferNothing(6);
  EXPECT_EQ(kept().After(10).bytes, "loaded");
}

TEST_F(StepBytesTest, OfferOfASkippedStep_CountsAtOnce) {
  kept().Offer(5, "five");
  kept().Offer(6, "with a step that was skipped");
  kept().MoveOffer(6, 5);
  EXPECT_EQ(kept().After(5).bytes, "with a step that was skipped");
  kept().OfferNothing(6);
  EXPECT_EQ(kept().After(6).bytes, "with a step that was skipped");
  EXPECT_EQ(kept().After(6).step, 5u);
}

TEST_F(StepBytesTest, AsManyAsThereIsRoomFor_AreKept) {
  const std::string full(kMost, 'x');
  kept().Offer(1, full);
  kept().Offer(2, std::string(kMost, 'y'));
  EXPECT_EQ(kept().After(1).bytes, full);
  EXPECT_DEATH(kept().Offer(3, full + "z"), "101 bytes to keep with a step, of 100");
}

}  // namespace
}  // namespace optshard

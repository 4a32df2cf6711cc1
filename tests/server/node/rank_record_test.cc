#include "server/node/rank_record.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace optshard {
namespace {

class RankRecordTest : public ::testing::Test {
 protected:
  struct alignas(64) Line {
    char bytes[64];
  };

  RankRecordTest() : memory_((RankRecord::Bytes() + 63) / 64) {}

  // Always another one: what it knows is in the memory.
  RankRecord record() { return RankRecord(memory_.data()); }

  std::vector<Line> memory_;
};

TEST_F(RankRecordTest, New_CountsTrainers) {
  EXPECT_EQ(record().NextIncarnation(), 1u);
  EXPECT_EQ(record().NextIncarnation(), 2u);
}

TEST_F(RankRecordTest, Trainer_ThereAndBack_IsTheSame) {
  EXPECT_EQ(record().trainer().pid, 0);
  record().SetTrainer({77, 1234});
  EXPECT_EQ(record().trainer().pid, 77);
  EXPECT_EQ(record().trainer().start_ticks, 1234u);
  record().SetTrainer(RankRecord::Trainer());
  EXPECT_EQ(record().trainer().pid, 0);
}

TEST_F(RankRecordTest, Blobs_GoWithSteps) {
  record().OfferBlob(1, "one");
  record().OfferNoBlob(2);
  record().OfferBlob(3, "with a step that was skipped");
  EXPECT_EQ(record().Blob(2).bytes, "one");
  record().MoveOffer(3, 2);
  EXPECT_EQ(record().Blob(2).bytes, "with a step that was skipped");
  record().ReplaceBlobs(1, "loaded");
  EXPECT_EQ(record().Blob(2).bytes, "loaded");
}

// Under the thread sanitizer, which sees a read while the bytes are written.
TEST_F(RankRecordTest, BlobThatIsReplaced_IsReadWhole) {
  RankRecord record(memory_.data());
  record.ReplaceBlobs(1, std::string(1000, '1'));
  std::thread replaces([&record] {
    for (StepNumber step = 2; step < 200; ++step) {
      record.ReplaceBlobs(1, std::string(1000, static_cast<char>('0' + step % 10)));
    }
  });
  for (int i = 0; i < 200; ++i) {
    const std::string bytes = record.Blob(1).bytes;
    ASSERT_EQ(bytes.size(), 1000u);
    ASSERT_EQ(bytes, std::string(1000, bytes[0]));
  }
  replaces.join();
}

}  // namespace
}  // namespace optshard

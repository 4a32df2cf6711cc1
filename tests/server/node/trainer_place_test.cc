#include "server/node/trainer_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "common/attach/attachment.h"
#include "common/link/memory_budget.h"
#include "common/link/process_stat.h"
#include "server/node/rank_record.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

class TrainerPlaceTest : public ::testing::Test {
 protected:
  static std::shared_ptr<Attachment> Trainer() {
    return std::make_shared<Attachment>(
        1, ProcessHandle::Open(getpid()).value(),
        Doorbell::Create(0, DoorbellShape{1, 1}, MemoryBudget::Unlimited()).value(),
        WriteCountAsker::Create().value());
  }
  std::string Refusal() const {
    const absl::Status status = place_.CheckFree("rank 3", self_);
    EXPECT_TRUE(status.ok() || absl::IsAlreadyExists(status)) << status;
    return std::string(status.message());
  }

  struct alignas(64) Line {
    char bytes[64];
  };
  std::vector<Line> memory_ = std::vector<Line>(RankRecord::Bytes() / sizeof(Line) + 1);
  RankRecord record_{memory_.data()};
  const ProcessHandle self_ = ProcessHandle::Open(getpid()).value();
  TrainerPlace place_{&record_};
};

TEST_F(TrainerPlaceTest, Reserved_IsNotFree_AndIsAsBeforeOnceGivenUp) {
  EXPECT_EQ(Refusal(), "");
  place_.Reserve(self_);
  EXPECT_FALSE(place_.free());
  EXPECT_THAT(Refusal(), HasSubstr("rank 3 has a trainer already: process " +
                                   std::to_string(getpid()) + ", which lives"));
  place_.GiveUp(/*gone=*/false);
  EXPECT_TRUE(place_.free());
  EXPECT_EQ(place_.how_gone(), "");
  place_.Reserve(self_);
  place_.GiveUp(/*gone=*/true);
  EXPECT_THAT(place_.how_gone(), HasSubstr("has gone while it attached"));
}

TEST_F(TrainerPlaceTest, TrainerThatLeft_KeepsThePlaceUntilItIsCleared_ButItCanBeReserved) {
  const std::shared_ptr<Attachment> trainer = Trainer();
  place_.Seat(trainer);
  EXPECT_TRUE(place_.held());
  EXPECT_FALSE(place_.free());
  EXPECT_EQ(record_.trainer().pid, getpid());
  EXPECT_TRUE(place_.Leave(trainer, "it was killed"));
  EXPECT_FALSE(place_.Leave(trainer, "again")) << "known already";
  EXPECT_EQ(place_.how_gone(), "it was killed");
  EXPECT_EQ(record_.trainer().pid, 0);
  EXPECT_FALSE(place_.held());
  EXPECT_TRUE(place_.free());
  EXPECT_EQ(place_.attachment(), trainer);
  place_.Clear(Trainer());
  EXPECT_EQ(place_.attachment(), trainer) << "another's end clears nothing";
  place_.Clear(trainer);
  EXPECT_EQ(place_.attachment(), nullptr);
}

TEST_F(TrainerPlaceTest, LivingTrainerOfAnEarlierServer_HasThePlace) {
  record_.SetTrainer({getppid(), StatOfProcess(getppid())->start_ticks});
  EXPECT_TRUE(place_.free());
  EXPECT_THAT(Refusal(), HasSubstr("process " + std::to_string(getppid())));
  record_.SetTrainer({getppid(), StatOfProcess(getppid())->start_ticks + 1});
  EXPECT_EQ(Refusal(), "") << "its pid is another process's now";
}

}  // namespace
}  // namespace optshard

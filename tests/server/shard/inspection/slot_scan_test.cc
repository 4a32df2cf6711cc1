#include "server/shard/inspection/slot_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <functional>
#include <vector>

#include "server/shard/inspection/idle_thread.h"

namespace optshard {
namespace {

constexpr int64_t kPieces = 4;
constexpr StepNumber kStep = 7;

// A slot of four pieces whose values are all 1.
class SlotScanTest : public ::testing::Test {
 protected:
  absl::StatusOr<SlotScan> Scan() {
    SlotScanRange range;
    range.parameter = 3;
    range.slot = "exp_avg";
    range.offset_elements = 1024;
    range.elements = elements_;
    const auto read = [this](int32_t parameter, const std::string& slot, int64_t offset,
                             absl::Span<double> out) -> absl::StatusOr<SlotRead> {
      EXPECT_EQ(parameter, 3);
      EXPECT_EQ(slot, "exp_avg");
      offsets_.push_back(offset);
      for (double& value : out) value = 1;
      const absl::StatusOr<StepNumber> step = step_of_(static_cast<int>(offsets_.size()));
      if (!step.ok()) return step.status();
      return SlotRead{*step, StateFormat::kBFloat16};
    };
    return ScanSlot(range, read, [this] { return proceed_(static_cast<int>(offsets_.size())); });
  }

  int64_t elements_ = kPieces * kScanPiece - 5;
  // By the number of reads so far, this one included.
  std::function<absl::StatusOr<StepNumber>(int read)> step_of_ = [](int) { return kStep; };
  std::function<absl::Status(int reads)> proceed_ = [](int) { return absl::OkStatus(); };
  std::vector<int64_t> offsets_;
};

TEST_F(SlotScanTest, NoStepMeanwhile_IsOfOneStep) {
  const absl::StatusOr<SlotScan> scan = Scan();
  ASSERT_TRUE(scan.ok()) << scan.status();
  EXPECT_EQ(scan->first_step, kStep);
  EXPECT_EQ(scan->last_step, kStep);
  EXPECT_EQ(scan->format, StateFormat::kBFloat16);
  EXPECT_EQ(scan->statistics.elements, elements_);
  EXPECT_EQ(scan->statistics.sum, elements_);
  EXPECT_THAT(offsets_, ::testing::ElementsAre(1024, 1024 + kScanPiece, 1024 + 2 * kScanPiece,
                                               1024 + 3 * kScanPiece));
}

TEST_F(SlotScanTest, OneStepMeanwhile_BeginsAnew) {
  step_of_ = [](int read) { return read < 3 ? kStep : kStep + 1; };
  const absl::StatusOr<SlotScan> scan = Scan();
  ASSERT_TRUE(scan.ok()) << scan.status();
  EXPECT_EQ(scan->first_step, kStep + 1);
  EXPECT_EQ(scan->last_step, kStep + 1);
  EXPECT_EQ(scan->statistics.elements, elements_);
  EXPECT_EQ(offsets_.size(), 3 + kPieces);
}

TEST_F(SlotScanTest, StepsAllTheTime_AreSaid) {
  step_of_ = [](int read) { return kStep + read; };
  const absl::StatusOr<SlotScan> scan = Scan();
  ASSERT_TRUE(scan.ok()) << scan.status();
  EXPECT_EQ(scan->statistics.elements, elements_);
  EXPECT_EQ(scan->first_step, kStep + 5);  // two passes ended at their second pieces
  EXPECT_EQ(scan->last_step, kStep + 8);
}

TEST_F(SlotScanTest, NoElements_SaysTheStep) {
  elements_ = 0;
  const absl::StatusOr<SlotScan> scan = Scan();
  ASSERT_TRUE(scan.ok()) << scan.status();
  EXPECT_EQ(scan->first_step, kStep);
  EXPECT_EQ(scan->statistics.elements, 0);
}

TEST_F(SlotScanTest, NotWantedAnyMore_EndsAtThePiece) {
  proceed_ = [](int reads) {
    return reads < 2 ? absl::OkStatus() : absl::CancelledError("the client has gone");
  };
  EXPECT_EQ(Scan().status(), absl::CancelledError("the client has gone"));
  EXPECT_EQ(offsets_.size(), 2);
}

TEST_F(SlotScanTest, StateIsTorn_ReturnsTheError) {
  step_of_ = [](int) { return absl::DataLossError("torn"); };
  EXPECT_EQ(Scan().status(), absl::DataLossError("torn"));
}

TEST(StartIdleThread, Work_HasTheIdlePolicy) {
  int policy = -1;
  absl::StatusOr<std::thread> thread =
      StartIdleThread([&policy] { policy = sched_getscheduler(0); });
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();
  EXPECT_EQ(policy, SCHED_IDLE);
  EXPECT_NE(sched_getscheduler(0), SCHED_IDLE);
}

}  // namespace
}  // namespace optshard

#include "server/shard/plane_guard.h"

#include <memory>

#include "common/clock.h"
#include "common/errors.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_plane.h"

namespace optshard {
namespace {

class PlaneGuardTest : public ::testing::Test {
 protected:
  // What an operation of the plane says; OK while it works.
  absl::Status Use() {
    char byte = 0;
    char gathered = 0;
    const auto ticket = plane_->AllGather(StepTag(), ExecutionContext(), &byte, &gathered, 1);
    return ticket.ok() ? (*ticket)->Wait(Clock::Monotonic().Now() + absl::Seconds(20))
                       : ticket.status();
  }

  testing::FakeHub hub_{testing::FakeHub::Options()};
  std::unique_ptr<DataPlane> plane_ = hub_.MakePlane(0);
  PlaneGuard guard_;
  const absl::Status lost_ = errors::PeerLost(1, "its lease ran out");
};

TEST_F(PlaneGuardTest, NewsOnceThereIsAPlane_BreaksIt) {
  guard_.Attach(plane_.get());
  EXPECT_TRUE(guard_.reason().ok());
  EXPECT_TRUE(Use().ok());
  guard_.Abort(lost_);
  EXPECT_EQ(Use(), lost_);
  EXPECT_EQ(guard_.reason(), lost_);
}

TEST_F(PlaneGuardTest, NewsBeforeThereIsAPlane_BreaksItAsItComes) {
  guard_.Abort(lost_);
  guard_.Attach(plane_.get());
  EXPECT_EQ(Use(), lost_);
}

TEST_F(PlaneGuardTest, NewsOnceThePlaneIsGone_TouchesNothing) {
  guard_.Attach(plane_.get());
  guard_.Detach();
  plane_.reset();
  guard_.Abort(lost_);
  EXPECT_EQ(guard_.reason(), lost_);
}

TEST_F(PlaneGuardTest, MoreNews_KeepsTheFirst) {
  guard_.Attach(plane_.get());
  guard_.Abort(lost_);
  guard_.Abort(errors::PeerLost(2, "it hung up"));
  EXPECT_EQ(guard_.reason(), lost_);
  EXPECT_EQ(Use(), lost_);
}

}  // namespace
}  // namespace optshard

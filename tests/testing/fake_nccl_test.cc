// That the fakes are as unforgiving as what they stand for.
#include "tests/testing/fake_nccl.h"

#include <atomic>
#include <cstring>
#include <vector>

#include "gmock/gmock.h"

namespace optshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// One rank, with a stream and an event at the end of what it has enqueued.
struct FakeRank {
  FakeRank(FakeNccl& nccl, FakeDevices& devices, Rank rank, int world_size)
      : device(devices.Add("cuda", "GPU")),
        stream(*device->NewStream()),
        api(nccl.MakeApi(rank)),
        communicator(*api->Connect(*api->NewUniqueId(), rank, world_size)) {}

  bool IsDone() {
    auto end = *device->NewEvent();
    EXPECT_TRUE(device->Record(*end, stream.get()).ok());
    return *device->IsReached(*end);
  }

  std::shared_ptr<DeviceApi> device;
  std::shared_ptr<void> stream;
  std::shared_ptr<NcclApi> api;
  std::unique_ptr<NcclCommunicator> communicator;
};

class FakeNcclTest : public ::testing::Test {
 protected:
  FakeDevices devices_;
  FakeNccl nccl_{devices_, FakeNccl::Options{}};
  FakeRank one_{nccl_, devices_, 0, 2};
  FakeRank other_{nccl_, devices_, 1, 2};
  int given_ = 5;
  int got_ = 0;
};

TEST_F(FakeNcclTest, Group_WorkOfItsStreamBefore_WaitsForItsTurn) {
  std::atomic<bool> open{false};
  devices_.Enqueue(one_.stream.get(), [&] { return open.load(); });
  ASSERT_TRUE(one_.api->GroupStart().ok());
  ASSERT_TRUE(one_.communicator->Send(&given_, sizeof given_, 1, one_.stream.get()).ok());
  ASSERT_TRUE(one_.api->GroupEnd().ok());
  ASSERT_TRUE(other_.api->GroupStart().ok());
  ASSERT_TRUE(other_.communicator->Receive(&got_, sizeof got_, 0, other_.stream.get()).ok());
  EXPECT_TRUE(other_.IsDone()) << "nothing is launched before the group ends";
  ASSERT_TRUE(other_.api->GroupEnd().ok());
  EXPECT_FALSE(other_.IsDone());
  EXPECT_EQ(got_, 0);
  open = true;
  EXPECT_TRUE(other_.IsDone());
  EXPECT_EQ(got_, 5);
  EXPECT_THAT(nccl_.Misuses(), IsEmpty());
}

// Each would wait for the other if the two calls were two launches.
TEST_F(FakeNcclTest, CallsOfOneGroup_InAnyOrder_AreOneLaunch) {
  int back = 0;
  ASSERT_TRUE(one_.api->GroupStart().ok());
  ASSERT_TRUE(one_.communicator->Receive(&back, sizeof back, 1, one_.stream.get()).ok());
  ASSERT_TRUE(one_.communicator->Send(&given_, sizeof given_, 1, one_.stream.get()).ok());
  ASSERT_TRUE(one_.api->GroupEnd().ok());
  ASSERT_TRUE(other_.api->GroupStart().ok());
  ASSERT_TRUE(other_.communicator->Receive(&got_, sizeof got_, 0, other_.stream.get()).ok());
  ASSERT_TRUE(other_.communicator->Send(&given_, sizeof given_, 0, other_.stream.get()).ok());
  ASSERT_TRUE(other_.api->GroupEnd().ok());
  EXPECT_TRUE(one_.IsDone());
  EXPECT_TRUE(other_.IsDone());
  EXPECT_EQ(back, 5);
  EXPECT_EQ(got_, 5);
}

TEST_F(FakeNcclTest, Collectives_InDifferentOrder_NeverComplete) {
  const auto broadcast = [&](FakeRank& rank, Rank root) {
    ASSERT_TRUE(rank.api->GroupStart().ok());
    ASSERT_TRUE(rank.communicator->Broadcast(&given_, sizeof given_, root, rank.stream.get()).ok());
    ASSERT_TRUE(rank.api->GroupEnd().ok());
  };
  broadcast(one_, 0);
  broadcast(one_, 1);
  broadcast(other_, 1);
  broadcast(other_, 0);
  EXPECT_FALSE(one_.IsDone());
  EXPECT_FALSE(other_.IsDone());
}

TEST_F(FakeNcclTest, Calls_ThatNcclForbids_AreNoted) {
  EXPECT_TRUE(absl::IsInvalidArgument(
      one_.communicator->Send(&given_, sizeof given_, 1, one_.stream.get())));
  EXPECT_TRUE(absl::IsInvalidArgument(one_.api->GroupEnd()));
  ASSERT_TRUE(one_.api->GroupStart().ok());
  EXPECT_TRUE(absl::IsInvalidArgument(one_.api->GroupStart()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      one_.communicator->Send(&given_, sizeof given_, 2, one_.stream.get())));
  ASSERT_TRUE(one_.communicator->Send(&given_, sizeof given_, 1, one_.stream.get()).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(
      one_.communicator->Send(&given_, sizeof given_, 1, other_.stream.get())));
  ASSERT_TRUE(one_.api->GroupEnd().ok());
  one_.communicator->Destroy();
  EXPECT_TRUE(absl::IsInvalidArgument(
      one_.communicator->Send(&given_, sizeof given_, 1, one_.stream.get())));
  EXPECT_THAT(
      nccl_.Misuses(),
      ElementsAre("a call outside a group", "GroupEnd without GroupStart", "a group in a group",
                  "no such rank", "a group on two streams", "Destroy before the work was complete",
                  "a call of an ended communicator"));
}

TEST_F(FakeNcclTest, Abort_WorkUnderWay_LetsTheStreamGoOnAndWritesNothing) {
  ASSERT_TRUE(other_.api->GroupStart().ok());
  ASSERT_TRUE(other_.communicator->Receive(&got_, sizeof got_, 0, other_.stream.get()).ok());
  ASSERT_TRUE(other_.api->GroupEnd().ok());
  EXPECT_FALSE(other_.IsDone());
  other_.communicator->Abort();
  EXPECT_TRUE(other_.IsDone());
  ASSERT_TRUE(one_.api->GroupStart().ok());
  ASSERT_TRUE(one_.communicator->Send(&given_, sizeof given_, 1, one_.stream.get()).ok());
  ASSERT_TRUE(one_.api->GroupEnd().ok());
  EXPECT_FALSE(one_.IsDone());
  EXPECT_EQ(got_, 0);
}

TEST_F(FakeNcclTest, Event_RecordedAgain_IsWaitedForAtTheEarlierPoint) {
  std::atomic<bool> open{false};
  auto event = *one_.device->NewEvent();
  EXPECT_TRUE(*one_.device->IsReached(*event)) << "never recorded";
  ASSERT_TRUE(one_.device->Record(*event, one_.stream.get()).ok());
  ASSERT_TRUE(one_.device->OrderAfter(other_.stream.get(), *event).ok());
  devices_.Enqueue(one_.stream.get(), [&] { return open.load(); });
  ASSERT_TRUE(one_.device->Record(*event, one_.stream.get()).ok());
  EXPECT_FALSE(*one_.device->IsReached(*event));
  EXPECT_TRUE(other_.IsDone());
  ASSERT_TRUE(one_.device->OrderAfter(other_.stream.get(), *event).ok());
  EXPECT_FALSE(other_.IsDone());
  open = true;
  EXPECT_TRUE(other_.IsDone());
}

}  // namespace
}  // namespace optshard::testing

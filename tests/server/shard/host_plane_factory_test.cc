// What the log and the caller are told of the plane that a rank gets.
#include "server/shard/host_plane_factory.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/memory_layout.h"
#include "common/parameter_space.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_rendezvous.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kWorldSize = 2;

MemoryLayout OneParameter() {
  ParameterSpec parameter;
  parameter.name = "p";
  parameter.shape = {100};
  return MemoryLayout(ParameterSpace({{{parameter}}}));
}

// What is logged by default when both ranks connect; `told` is by rank.
std::string LogOf(const std::vector<bool>& has_replica, std::vector<PlaneNotice>* told) {
  const MemoryLayout layout = OneParameter();
  testing::FakeRendezvous rendezvous;
  told->resize(kWorldSize);
  ::testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < kWorldSize; ++rank) {
    threads.emplace_back([&, rank] {
      PlaneRequest request;
      request.rank = rank;
      request.world_size = kWorldSize;
      request.tree.node_groups = {{0, 1}};
      request.rendezvous = &rendezvous;
      request.deadline = Clock::Monotonic().Now() + absl::Seconds(20);
      request.layout = &layout;
      ReplicaOfRank replica;
      if (has_replica[rank]) {
        replica =
            [](const PlaneRequest& of) -> absl::StatusOr<std::shared_ptr<const ReplicaSegments>> {
          return ReplicaSegments::Create(*of.layout, of.rank,
                                         ReplicaSegments::Parts::kParametersAndGradients);
        };
      }
      const auto plane =
          MakeHostPlaneFactory(HostPlaneKind::kAuto, "lo", replica,
                               [&](const PlaneNotice& notice) { (*told)[rank] = notice; })(request);
      EXPECT_TRUE(plane.ok()) << plane.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ::testing::internal::GetCapturedStderr();
}

TEST(HostPlaneFactory_FastestWay, IsNoWarning) {
  std::vector<PlaneNotice> told;
  EXPECT_THAT(LogOf({true, true}, &told), IsEmpty());
  for (const PlaneNotice& notice : told) {
    EXPECT_THAT(notice.text, HasSubstr("in one pass"));
    EXPECT_FALSE(notice.is_warning);
  }
}

TEST(HostPlaneFactory_OneRankWithoutReplica, IsAWarningForTheOther) {
  std::vector<PlaneNotice> told;
  EXPECT_THAT(LogOf({true, false}, &told),
              AllOf(HasSubstr("warning owner rank=0 steps send messages through shared memory, "
                              "because the parameters of rank 1 are not in shared memory; "),
                    HasSubstr("parameters_as_bucket_view"), Not(HasSubstr("rank=1"))));
  EXPECT_EQ(told[0].text, told[1].text);
  EXPECT_TRUE(told[0].is_warning);
  EXPECT_FALSE(told[1].is_warning) << "it was told to do without";
}

}  // namespace
}  // namespace optshard

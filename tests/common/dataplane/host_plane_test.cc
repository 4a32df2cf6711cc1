#include "common/dataplane/host_plane.h"

#include <thread>
#include <vector>

#include "common/memory_layout.h"
#include "common/parameter_space.h"
#include "gtest/gtest.h"
#include "tests/common/dataplane/plane_group.h"
#include "tests/testing/fake_rendezvous.h"

namespace optshard {
namespace {

MemoryLayout OneParameter() {
  ParameterSpec parameter;
  parameter.name = "p";
  parameter.shape = {100};
  return MemoryLayout(ParameterSpace({{{parameter}}}));
}

// The planes of as many ranks as there are wishes.
struct Wish {
  HostPlaneKind kind = HostPlaneKind::kAuto;
  std::string identity = "here";
};
std::vector<absl::StatusOr<std::unique_ptr<DataPlane>>> PlanesOf(const std::vector<Wish>& wishes) {
  const MemoryLayout layout = OneParameter();
  testing::FakeRendezvous rendezvous;
  const int world_size = static_cast<int>(wishes.size());
  std::vector<absl::StatusOr<std::unique_ptr<DataPlane>>> planes(wishes.size());
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      HostPlaneOptions options;
      options.rank = rank;
      options.world_size = world_size;
      options.tree.node_groups.emplace_back();
      for (Rank r = 0; r < world_size; ++r) options.tree.node_groups[0].push_back(r);
      options.rendezvous = &rendezvous;
      options.deadline = FarDeadline();
      options.kind = wishes[rank].kind;
      options.identity = wishes[rank].identity;
      options.layout = &layout;
      options.replica = [&layout, rank] {
        return ReplicaSegments::Create(layout, rank,
                                       ReplicaSegments::Parts::kParametersAndGradients);
      };
      planes[rank] = CreateHostPlane(options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return planes;
}

TEST(HostPlane_AllRanksOnOneHost, ReachEachOthersReplicas) {
  for (const auto& plane : PlanesOf({{}, {}, {HostPlaneKind::kShm, "here"}})) {
    ASSERT_TRUE(plane.ok()) << plane.status();
    ASSERT_NE((*plane)->peer_replicas(), nullptr);
    EXPECT_EQ((*plane)->peer_replicas()->regions.size(), 3u);
  }
}

TEST(HostPlane_OneRankElsewhere_AllTakeGloo, ForAuto) {
  for (const auto& plane : PlanesOf({{}, {HostPlaneKind::kAuto, "there"}})) {
    ASSERT_TRUE(plane.ok()) << plane.status();
    EXPECT_EQ((*plane)->peer_replicas(), nullptr);
  }
}

TEST(HostPlane_OneRankAsksForGloo_AllTakeIt, ForAuto) {
  for (const auto& plane : PlanesOf({{}, {HostPlaneKind::kGloo, "here"}})) {
    ASSERT_TRUE(plane.ok()) << plane.status();
    EXPECT_EQ((*plane)->peer_replicas(), nullptr);
  }
}

TEST(HostPlane_ShmWithRanksElsewhere_IsRefused, ForEachOfThem) {
  const auto planes = PlanesOf({{HostPlaneKind::kShm, "here"}, {HostPlaneKind::kShm, "there"}});
  for (const auto& plane : planes) {
    EXPECT_TRUE(absl::IsFailedPrecondition(plane.status())) << plane.status();
  }
}

TEST(HostPlane_ReplicaThatCannotBeMade_IsTheError, Unchanged) {
  testing::FakeRendezvous rendezvous;
  HostPlaneOptions options;
  options.rendezvous = &rendezvous;
  options.tree.node_groups = {{0}};
  options.deadline = FarDeadline();
  options.replica = [] { return absl::ResourceExhaustedError("none left"); };
  EXPECT_EQ(CreateHostPlane(options).status(), absl::ResourceExhaustedError("none left"));
}

TEST(HostPlaneKind_Names, AreParsed) {
  for (const HostPlaneKind kind :
       {HostPlaneKind::kAuto, HostPlaneKind::kShm, HostPlaneKind::kGloo}) {
    ASSERT_TRUE(ParseHostPlaneKind(NameOf(kind)).ok());
    EXPECT_EQ(*ParseHostPlaneKind(NameOf(kind)), kind);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParseHostPlaneKind("tcp").status()));
}

}  // namespace
}  // namespace optshard

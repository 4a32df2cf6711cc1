// Planes of a job whose ranks are on two hosts: the conformance suite, and what only they have.
#include "common/dataplane/nodes_plane.h"

#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/dataplane/host_plane.h"
#include "common/errors.h"
#include "common/memory_layout.h"
#include "common/parameter_space.h"
#include "tests/common/dataplane/conformance.h"
#include "tests/common/dataplane/conformance_operations.h"
#include "tests/testing/fake_rendezvous.h"

namespace optshard {
namespace {

MemoryLayout OneParameter() {
  ParameterSpec parameter;
  parameter.name = "p";
  parameter.shape = {100};
  return MemoryLayout(ParameterSpace({{{parameter}}}));
}

// The ranks are dealt to two hosts.
class NodesMaker : public PlaneMaker {
 public:
  explicit NodesMaker(int world_size) : world_size_(world_size) {
    tree_.node_groups.resize(2);
    for (Rank rank = 0; rank < world_size; ++rank) tree_.node_groups[rank % 2].push_back(rank);
  }

  absl::StatusOr<std::unique_ptr<DataPlane>> Make(Rank rank) override {
    HostPlaneOptions options;
    options.rank = rank;
    options.world_size = world_size_;
    options.tree = tree_;
    options.generation = 7;
    options.rendezvous = &rendezvous_;
    options.deadline = FarDeadline();
    options.layout = &layout_;
    options.identity = rank % 2 == 0 ? "even" : "odd";
    options.replica = [&, rank] {
      return ReplicaSegments::Create(layout_, rank,
                                     ReplicaSegments::Parts::kParametersAndGradients);
    };
    return CreateHostPlane(options);
  }

 private:
  const int world_size_;
  const MemoryLayout layout_ = OneParameter();
  ReductionTree tree_;
  testing::FakeRendezvous rendezvous_;
};

PlaneKind Nodes() {
  return {"Nodes", [](int world_size) { return std::make_unique<NodesMaker>(world_size); }};
}

INSTANTIATE_TEST_SUITE_P(Nodes, DataPlaneConformance, CasesOf({Nodes()}, 3, 4), CaseName);
INSTANTIATE_TEST_SUITE_P(Nodes, DataPlaneWithPeers, CasesOf({Nodes()}, 3, 4), CaseName);

constexpr int kRanks = 5;

absl::Status NodeBarrier(DataPlane& plane, std::vector<char>* gathered, int number) {
  const char mine = static_cast<char>(10 + plane.rank());
  gathered->assign(plane.world_size(), -1);
  return WaitFor(plane.node()->plane->AllGather(Tag(StepPhase::kControl, number), kHost, &mine,
                                                gathered->data(), 1));
}

TEST(NodesPlane_EachNode_ReachesItsOwnReplicasAndGathersAmongItself, ByTheRanksOfTheJob) {
  RunGroup(Nodes(), kRanks, [](DataPlane& plane) {
    EXPECT_EQ(plane.peer_replicas(), nullptr);
    ASSERT_NE(plane.node(), nullptr);
    const bool even = plane.rank() % 2 == 0;
    EXPECT_EQ(plane.node()->ranks, even ? std::vector<Rank>({0, 2, 4}) : std::vector<Rank>({1, 3}));
    EXPECT_EQ(plane.node()->plane->rank(), plane.rank());
    EXPECT_EQ(plane.node()->plane->world_size(), kRanks);
    const PeerReplicas* replicas = plane.node()->plane->peer_replicas();
    ASSERT_NE(replicas, nullptr);
    EXPECT_EQ(ReplicasReachedBy(plane), replicas);
    ASSERT_EQ(replicas->regions.size(), static_cast<size_t>(kRanks));
    replicas->regions[plane.rank()][0].gradients.As<float>()[3] =
        static_cast<float>(plane.rank() + 1);

    std::vector<char> gathered;
    ASSERT_TRUE(NodeBarrier(plane, &gathered, 0).ok());
    for (Rank rank = 0; rank < kRanks; ++rank) {
      const bool here = rank % 2 == plane.rank() % 2;
      EXPECT_EQ(gathered[rank], here ? 10 + rank : -1);
      ASSERT_EQ(replicas->regions[rank].empty(), !here);
      if (!here) continue;
      EXPECT_EQ(replicas->regions[rank][0].gradients.As<float>()[3], static_cast<float>(rank + 1));
    }
    int data = plane.rank() == 3 ? 33 : 0;
    if (!even) {
      ASSERT_TRUE(WaitFor(plane.node()->plane->Publish(Tag(StepPhase::kPublish), kHost, 3, {1, 3},
                                                       &data, sizeof data))
                      .ok());
      EXPECT_EQ(data, 33);
      EXPECT_TRUE(absl::IsInvalidArgument(WaitFor(plane.node()->plane->Publish(
          Tag(StepPhase::kPublish, 1), kHost, 3, {2, 3}, &data, sizeof data))))
          << "rank 2 is not of this node";
    }
    EXPECT_TRUE(Barrier(plane, 1).ok());
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
}

TEST(NodesPlane_RankOfTheNodeIsGone, AllNameItByItsRankInTheJob) {
  Meeting all_connected(kRanks);
  RunGroup(Nodes(), kRanks, [&](DataPlane& plane) {
    all_connected.Attend();
    if (plane.rank() == 3) return;  // destroys the plane
    if (plane.rank() % 2 == 0) {
      const absl::Status status = Barrier(plane, 0);
      EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{3}) << status;
      return;
    }
    std::vector<char> gathered;
    const absl::Status status = NodeBarrier(plane, &gathered, 0);
    EXPECT_TRUE(errors::IsPeerLost(status)) << status;
    EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{3}) << status;
    plane.Abort(status);
  });
}

TEST(NodesPlane_Aborted_EndsTheWaitsInBothPlanesOfAllRanks, WithTheRankThatIsToBlame) {
  Meeting all_connected(kRanks);
  Meeting all_done(kRanks);
  RunGroup(Nodes(), kRanks, [&](DataPlane& plane) {
    EXPECT_TRUE(Barrier(plane, 0).ok());
    all_connected.Attend();
    if (plane.rank() == 0) {
      plane.Abort(errors::PeerLost(1, "the test says so"));
    } else if (plane.rank() == 2 || plane.rank() == 4) {
      std::vector<char> gathered;
      const absl::Status status = NodeBarrier(plane, &gathered, 1);
      EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{1}) << status;
    } else if (plane.rank() == 3) {
      const absl::Status status = Barrier(plane, 1);
      EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{1}) << status;
    }
    all_done.Attend();
  });
}

}  // namespace
}  // namespace optshard

// What only this plane has: the replicas of its peers.
#include "common/dataplane/shm/shm_plane.h"

#include <fcntl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/errors.h"
#include "common/memory_layout.h"
#include "common/parameter_space.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/dataplane/plane_group.h"
#include "tests/testing/fake_rendezvous.h"

namespace optshard {
namespace {

using Parts = ReplicaSegments::Parts;

ParameterSpace SpaceOf(const std::vector<int64_t>& sizes) {
  GroupSpec group;
  for (const int64_t size : sizes) {
    ParameterSpec parameter;
    parameter.name = "p" + std::to_string(group.parameters.size());
    parameter.shape = {size};
    group.parameters.push_back(parameter);
  }
  return ParameterSpace({group});
}

std::shared_ptr<const ReplicaSegments> MakeReplica(const MemoryLayout& layout, Rank rank,
                                                   Parts parts = Parts::kParametersAndGradients) {
  absl::StatusOr<std::shared_ptr<const ReplicaSegments>> made =
      ReplicaSegments::Create(layout, rank, parts);
  EXPECT_TRUE(made.ok()) << made.status();
  return *made;
}

// Every rank on a thread of its own, with options that lack the replica.
void OnEveryRank(int world_size, const MemoryLayout& layout,
                 const std::function<void(ShmPlaneOptions)>& body) {
  testing::FakeRendezvous rendezvous;
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      ShmPlaneOptions options;
      options.rank = rank;
      options.world_size = world_size;
      options.rendezvous = &rendezvous;
      options.layout = &layout;
      options.deadline = FarDeadline();
      body(options);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A rank gives the replica that `replica_of` makes.
void OnEveryRank(int world_size, const MemoryLayout& layout,
                 const std::function<std::shared_ptr<const ReplicaSegments>(Rank)>& replica_of,
                 const std::function<void(absl::StatusOr<std::unique_ptr<DataPlane>>)>& body) {
  OnEveryRank(world_size, layout, [&](ShmPlaneOptions options) {
    options.replica = replica_of(options.rank);
    body(CreateShmPlane(options));
  });
}

absl::Status Barrier(DataPlane& plane, int32_t number) {
  char mine = 1;
  std::vector<char> all(plane.world_size());
  auto ticket = plane.AllGather({1, 1, number, StepPhase::kControl}, {}, &mine, all.data(), 1);
  return ticket.ok() ? (*ticket)->Wait(FarDeadline()) : ticket.status();
}

TEST(ShmPlane_ReplicasOfAllRanks_AreReached, ReadAndWritten) {
  const ParameterSpace space = SpaceOf({1000, 7, 70000});
  const MemoryLayout layout(space);
  OnEveryRank(
      3, layout, [&](Rank rank) { return MakeReplica(layout, rank); },
      [&](absl::StatusOr<std::unique_ptr<DataPlane>> made) {
        ASSERT_TRUE(made.ok()) << made.status();
        DataPlane& plane = **made;
        const PeerReplicas* replicas = plane.peer_replicas();
        ASSERT_NE(replicas, nullptr);
        ASSERT_EQ(replicas->regions.size(), 3u);
        const int64_t last = layout.regions()[0].elements - 1;
        const Rank me = plane.rank();
        replicas->regions[me][0].gradients.As<float>()[last] = 10.0f + static_cast<float>(me);
        ASSERT_TRUE(Barrier(plane, 0).ok());
        for (Rank peer = 0; peer < 3; ++peer) {
          EXPECT_EQ(replicas->regions[peer][0].gradients.As<float>()[last],
                    10.0f + static_cast<float>(peer));
          replicas->regions[peer][0].parameters.As<float>()[me] = 20.0f + static_cast<float>(me);
        }
        ASSERT_TRUE(Barrier(plane, 1).ok());
        for (Rank peer = 0; peer < 3; ++peer) {
          EXPECT_EQ(replicas->regions[me][0].parameters.As<float>()[peer],
                    20.0f + static_cast<float>(peer));
        }
        EXPECT_TRUE(plane.Close(FarDeadline()).ok());
      });
}

ParameterSpace WithAddedGroups(const ParameterSpace& space, int admissions) {
  std::vector<GroupSpec> groups = space.groups();
  for (int i = 1; i <= admissions; ++i) {
    GroupSpec group;
    group.parameters = {{"added" + std::to_string(i), {100 + i}}};
    group.admission = i;
    groups.push_back(std::move(group));
  }
  return ParameterSpace(std::move(groups));
}

// One more admission, and more than one message has room for.
TEST(ShmPlane_GrownReplicas_KeepWhatWasThereInPlace, AndPeersReachAllOfThem) {
  for (const int admissions : {1, 40}) {
    SCOPED_TRACE(admissions);
    const MemoryLayout before(SpaceOf({1000, 7}));
    const MemoryLayout after(WithAddedGroups(SpaceOf({1000, 7}), admissions));
    std::vector<std::shared_ptr<const ReplicaSegments>> former(2);
    std::vector<std::shared_ptr<const ReplicaSegments>> grown(2);
    for (Rank rank = 0; rank < 2; ++rank) {
      former[rank] = MakeReplica(before, rank);
      former[rank]->regions()[0].parameters.As<float>()[999] = 5.0f + static_cast<float>(rank);
      absl::StatusOr<std::shared_ptr<const ReplicaSegments>> made =
          ReplicaSegments::Grow(*former[rank], after, rank);
      ASSERT_TRUE(made.ok()) << made.status();
      grown[rank] = *std::move(made);
      EXPECT_EQ(grown[rank]->regions()[0].parameters, former[rank]->regions()[0].parameters);
      EXPECT_EQ(grown[rank]->regions()[0].gradients, former[rank]->regions()[0].gradients);
    }
    OnEveryRank(
        2, after, [&](Rank rank) { return grown[rank]; },
        [&](absl::StatusOr<std::unique_ptr<DataPlane>> made) {
          ASSERT_TRUE(made.ok()) << made.status();
          DataPlane& plane = **made;
          const PeerReplicas* replicas = plane.peer_replicas();
          ASSERT_NE(replicas, nullptr);
          const std::vector<ReplicaRegion>& theirs = replicas->regions[1 - plane.rank()];
          ASSERT_EQ(theirs.size(), 1u + admissions);
          EXPECT_EQ(theirs[0].parameters.As<float>()[999], 6.0f - static_cast<float>(plane.rank()));
          EXPECT_EQ(theirs[admissions].gradients.As<float>()[3], 0.0f);
          ASSERT_TRUE(Barrier(plane, 0).ok());
          theirs[admissions].gradients.As<float>()[3] = 7.0f;
          ASSERT_TRUE(Barrier(plane, 1).ok());
          EXPECT_EQ(grown[plane.rank()]->regions()[admissions].gradients.As<float>()[3], 7.0f);
          EXPECT_TRUE(plane.Close(FarDeadline()).ok());
        });
  }
}

// A mapping of memory that is populated takes long.
TEST(ShmPlane_ThatFollowsAnother_MapsOnlyWhatIsNew, AndTheFirstMayEnd) {
  const MemoryLayout before(SpaceOf({1000, 7}));
  const MemoryLayout after(WithAddedGroups(SpaceOf({1000, 7}), 1));
  for (const bool others : {false, true}) {  // whether the rank has other memory than before
    testing::FakeRendezvous next;
    OnEveryRank(2, before, [&](ShmPlaneOptions options) {
      const Rank rank = options.rank;
      options.replica = MakeReplica(before, rank);
      std::unique_ptr<DataPlane> first = CreateShmPlane(options).value();
      const std::vector<std::vector<ReplicaRegion>> reached = first->peer_replicas()->regions;

      options.replica =
          ReplicaSegments::Grow(others ? *MakeReplica(before, rank) : *options.replica, after, rank)
              .value();
      options.layout = &after;
      options.generation = 2;
      options.rendezvous = &next;
      options.before = first->peer_replicas();
      const std::unique_ptr<DataPlane> second = CreateShmPlane(options).value();
      EXPECT_TRUE(first->Close(FarDeadline()).ok());
      first.reset();
      const std::vector<ReplicaRegion>& theirs = second->peer_replicas()->regions[1 - rank];
      ASSERT_EQ(theirs.size(), 2u);
      EXPECT_EQ(theirs[0].parameters == reached[1 - rank][0].parameters, !others);
      EXPECT_EQ(theirs[0].gradients == reached[1 - rank][0].gradients, !others);
      for (size_t r = 0; r < 2; ++r) {
        options.replica->regions()[r].gradients.As<float>()[3] = static_cast<float>(10 * r + rank);
      }
      ASSERT_TRUE(Barrier(*second, 0).ok());
      for (size_t r = 0; r < 2; ++r) {
        EXPECT_EQ(theirs[r].gradients.As<float>()[3], static_cast<float>(10 * r + 1 - rank));
      }
      EXPECT_TRUE(second->Close(FarDeadline()).ok());
    });
  }
}

TEST(ReplicaSegments_OfAnotherNumberOfAdmissions, AreRefused) {
  const MemoryLayout one(SpaceOf({100}));
  const MemoryLayout two(WithAddedGroups(SpaceOf({100}), 1));
  const std::shared_ptr<const ReplicaSegments> replica = MakeReplica(one, 0);
  ReplicaSegments::Descriptors descriptors;
  for (const int fd : replica->gradients_fds()) {
    descriptors.gradients.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  }
  const absl::Status status = ReplicaSegments::Attach(two, 0, std::move(descriptors)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("expected 2 each"));
}

TEST(ShmPlane_GradientsOnly_UseTheParametersOfTheLowestRankThatHasSome, OnAllRanks) {
  const MemoryLayout layout(SpaceOf({100}));
  OnEveryRank(
      3, layout,
      [&](Rank rank) {
        return MakeReplica(layout, rank,
                           rank == 1 ? Parts::kParametersAndGradients : Parts::kGradients);
      },
      [&](absl::StatusOr<std::unique_ptr<DataPlane>> made) {
        ASSERT_TRUE(made.ok()) << made.status();
        DataPlane& plane = **made;
        const PeerReplicas* replicas = plane.peer_replicas();
        ASSERT_NE(replicas, nullptr);
        EXPECT_EQ(replicas->regions[0][0].parameters, replicas->regions[1][0].parameters);
        EXPECT_EQ(replicas->regions[2][0].parameters, replicas->regions[1][0].parameters);
        EXPECT_NE(replicas->regions[0][0].gradients, replicas->regions[1][0].gradients);
        if (plane.rank() == 2) replicas->regions[2][0].parameters.As<float>()[5] = 3;
        ASSERT_TRUE(Barrier(plane, 0).ok());
        EXPECT_EQ(replicas->regions[plane.rank()][0].parameters.As<float>()[5], 3);
        EXPECT_TRUE(plane.Close(FarDeadline()).ok());
      });
}

TEST(ShmPlane_OneRankWithoutReplica_NobodyReachesAny, AndThePlaneWorks) {
  const MemoryLayout layout(SpaceOf({100}));
  OnEveryRank(
      2, layout, [&](Rank rank) { return rank == 0 ? MakeReplica(layout, rank) : nullptr; },
      [&](absl::StatusOr<std::unique_ptr<DataPlane>> made) {
        ASSERT_TRUE(made.ok()) << made.status();
        EXPECT_EQ((*made)->peer_replicas(), nullptr);
        EXPECT_TRUE(Barrier(**made, 0).ok());
        EXPECT_TRUE((*made)->Close(FarDeadline()).ok());
      });
}

TEST(ShmPlane_ReplicaOfAnotherLayout_IsRefusedNamingIt, ByItsPeers) {
  const MemoryLayout layout(SpaceOf({100}));
  const MemoryLayout other(SpaceOf({50, 50}));
  std::atomic<int> refused{0};
  OnEveryRank(
      2, layout,
      [&](Rank rank) { return rank == 0 ? MakeReplica(layout, rank) : MakeReplica(other, rank); },
      [&](absl::StatusOr<std::unique_ptr<DataPlane>> made) {
        if (!made.ok() && absl::IsInvalidArgument(made.status())) ++refused;
      });
  EXPECT_GE(refused, 1);
}

TEST(ShmPlane_RanksThatCannotBe_AreRefused, WithWhatIsExpected) {
  testing::FakeRendezvous rendezvous;
  for (const std::vector<Rank>& ranks :
       {std::vector<Rank>{2, 1}, {1, 1}, {0, 2}, {1, 5}, {-1, 1}}) {
    ShmPlaneOptions options;
    options.rank = 1;
    options.world_size = 5;
    options.ranks = ranks;
    options.rendezvous = &rendezvous;
    const absl::Status status = CreateShmPlane(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(
        std::string(status.message()),
        ::testing::HasSubstr("expected ranks below 5 in ascending order, with 1 among them"));
  }
}

TEST(ShmPlane_RankThatNeverComes_IsNamed, ByAllOthers) {
  testing::FakeRendezvous rendezvous;
  std::vector<std::thread> threads;
  for (const Rank rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      ShmPlaneOptions options;
      options.rank = rank;
      options.world_size = 3;
      options.rendezvous = &rendezvous;
      options.deadline = Clock::Monotonic().Now() + absl::Milliseconds(200);
      const absl::Status status = CreateShmPlane(options).status();
      EXPECT_TRUE(errors::IsPeersTimedOut(status)) << "rank " << rank << ": " << status;
      EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{2}) << "rank " << rank << ": " << status;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace optshard

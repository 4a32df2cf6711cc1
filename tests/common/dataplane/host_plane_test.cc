#include "common/dataplane/host_plane.h"

#include <string>
#include <thread>
#include <vector>

#include "common/memory_layout.h"
#include "common/parameter_space.h"
#include "common/plan.h"
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
  enum Replica { kGiven, kNone, kNotAllocated } replica = kGiven;
};
std::vector<absl::StatusOr<std::unique_ptr<DataPlane>>> PlanesOf(
    const std::vector<Wish>& wishes, std::vector<HostPlaneChoice>* chosen = nullptr) {
  if (chosen != nullptr) chosen->resize(wishes.size());
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
      std::vector<std::string> nodes;
      for (const Wish& wish : wishes) nodes.push_back(wish.identity);
      options.tree = MakeReductionTree(nodes);
      options.rendezvous = &rendezvous;
      options.deadline = FarDeadline();
      options.kind = wishes[rank].kind;
      options.identity = wishes[rank].identity;
      options.layout = &layout;
      if (chosen != nullptr) options.chosen = &(*chosen)[rank];
      if (wishes[rank].replica != Wish::kNone) {
        options.replica = [&, rank]() -> absl::StatusOr<std::shared_ptr<const ReplicaSegments>> {
          if (wishes[rank].replica == Wish::kNotAllocated) return nullptr;
          return ReplicaSegments::Create(layout, rank,
                                         ReplicaSegments::Parts::kParametersAndGradients);
        };
      }
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

TEST(HostPlane_OneRankWithoutReplica_AllSendMessages, AndKnowWhose) {
  std::vector<HostPlaneChoice> chosen;
  const auto planes = PlanesOf({{}, {HostPlaneKind::kAuto, "here", Wish::kNone}, {}}, &chosen);
  for (size_t rank = 0; rank < planes.size(); ++rank) {
    ASSERT_TRUE(planes[rank].ok()) << planes[rank].status();
    EXPECT_EQ((*planes[rank])->peer_replicas(), nullptr);
    EXPECT_EQ(chosen[rank].way, HostPlaneWay::kShmMessages);
    EXPECT_EQ(chosen[rank].reason, "the parameters of rank 1 are not in shared memory");
  }
}

TEST(HostPlane_OneRankWithoutMemoryForItsReplica_AllSendMessages, InsteadOfFailing) {
  std::vector<HostPlaneChoice> chosen;
  const auto planes =
      PlanesOf({{}, {HostPlaneKind::kAuto, "here", Wish::kNotAllocated}, {}}, &chosen);
  for (size_t rank = 0; rank < planes.size(); ++rank) {
    ASSERT_TRUE(planes[rank].ok()) << planes[rank].status();
    EXPECT_EQ((*planes[rank])->peer_replicas(), nullptr);
    EXPECT_EQ(chosen[rank].way, HostPlaneWay::kShmMessages);
    EXPECT_TRUE(chosen[rank].NoticeFor(false).is_warning);
  }
}

TEST(ChooseHostPlane_WhatRanksOffer_DecidesAndSaysWhy, ForEachWay) {
  struct Case {
    std::vector<RankOffer> offers;
    ReductionTree tree;
    HostPlaneWay way;
    const char* reason;
    const char* remedy;
  };
  const std::string here = "net:[1] pid:[2] 11-22 0";
  const std::string container = "net:[3] pid:[2] 11-22 0";
  const std::string there = "net:[1] pid:[2] 33-44 0";
  const RankOffer good = {here, false, true};
  const RankOffer away = {there, false, true};
  const std::vector<Case> cases = {
      {{good, good}, {}, HostPlaneWay::kOnePass, "", ""},
      {{good, {there, false, true}, {"", false, true}},
       {{{0, 1, 2}}},
       HostPlaneWay::kGloo,
       "ranks 1, 2 cannot",
       ""},
      {{good, {container, false, true}, {there, false, true}},
       {{{0}, {1}, {2}}},
       HostPlaneWay::kGloo,
       "ranks 1, 2 cannot",
       ""},
      {{good, {container, false, true}},
       {{{0, 1}}},
       HostPlaneWay::kGloo,
       "rank 1 cannot",
       "in one network namespace"},
      {{{"", false, true}, {"", false, true}},
       {{{0, 1}}},
       HostPlaneWay::kGloo,
       "ranks 0, 1 cannot",
       ""},
      {{good, {here, true, true}},
       {},
       HostPlaneWay::kGloo,
       "rank 1 asked for \"gloo\"",
       "leave the option \"plane\" at \"auto\""},
      {{good, {there, true, true}}, {}, HostPlaneWay::kGloo, "rank 1 asked for \"gloo\"", ""},
      {{{here, false, false}, good},
       {},
       HostPlaneWay::kShmMessages,
       "parameters of rank 0",
       "leave the option parameters_as_bucket_view at its default"},
      {{good, away, good, away},
       {{{0, 2}, {1, 3}}},
       HostPlaneWay::kNodes,
       "ranks 1, 3 cannot share memory with rank 0",
       ""},
      // Two nodes on one host, one on another.
      {{good, good, away, good}, {{{0}, {1, 3}, {2}}}, HostPlaneWay::kNodes, "rank 2 cannot", ""},
      {{good, {container, false, true}, good},
       {{{0, 2}, {1}}},
       HostPlaneWay::kNodes,
       "rank 1 cannot",
       "in one network namespace"},
      {{good, away, good, away},
       {{{0, 1}, {2, 3}}},
       HostPlaneWay::kGloo,
       "and ranks 0, 1 have one node name and do not all share memory",
       "give the ranks of each host a node name of their own"},
      {{good, away, good, away},
       {{{0}, {1}, {2}, {3}}},
       HostPlaneWay::kGloo,
       "and every rank has a node name of its own",
       "the same node name"},
      {{good, away, {here, false, false}, away},
       {{{0, 2}, {1, 3}}},
       HostPlaneWay::kGloo,
       "and the parameters of rank 2 are not in shared memory",
       "leave the option parameters_as_bucket_view at its default"},
  };
  for (const Case& each : cases) {
    const HostPlaneChoice choice = ChooseHostPlane(each.offers, each.tree);
    EXPECT_EQ(choice.way, each.way) << choice.reason;
    EXPECT_NE(choice.reason.find(each.reason), std::string::npos) << choice.reason;
    EXPECT_EQ(choice.reason.empty(), each.way == HostPlaneWay::kOnePass) << choice.reason;
    EXPECT_NE(choice.remedy.find(each.remedy), std::string::npos) << choice.remedy;
    EXPECT_EQ(choice.remedy.empty(), std::string(each.remedy).empty()) << choice.remedy;
  }
}

TEST(HostPlaneChoice_Notice_IsAWarning, WhereAFasterWayIsPossibleAndWasNotRefused) {
  const PlaneNotice fastest = HostPlaneChoice{HostPlaneWay::kOnePass, "", ""}.NoticeFor(false);
  EXPECT_EQ(fastest.text, "steps run in one pass over the memory that all ranks share");
  EXPECT_FALSE(fastest.is_warning);

  const PlaneNotice hosts = HostPlaneChoice{HostPlaneWay::kGloo, "of R", ""}.NoticeFor(false);
  EXPECT_EQ(hosts.text, "steps send messages over Gloo, because of R");
  EXPECT_FALSE(hosts.is_warning);

  const PlaneNotice nodes = HostPlaneChoice{HostPlaneWay::kNodes, "of R", ""}.NoticeFor(false);
  EXPECT_EQ(nodes.text,
            "steps run in one pass over the memory of each node's ranks, and send messages over "
            "Gloo between the nodes, because of R");
  EXPECT_FALSE(nodes.is_warning);

  const HostPlaneChoice slow = {HostPlaneWay::kShmMessages, "of R", "do D"};
  EXPECT_EQ(slow.NoticeFor(false).text,
            "steps send messages through shared memory, because of R; they could run several times "
            "as fast: do D");
  EXPECT_TRUE(slow.NoticeFor(false).is_warning);
  EXPECT_FALSE(slow.NoticeFor(true).is_warning);
  EXPECT_EQ(slow.NoticeFor(true).text, slow.NoticeFor(false).text);
}

TEST(HostPlane_OneRankElsewhere_AllTakeGloo, ForAuto) {
  for (const auto& plane : PlanesOf({{}, {HostPlaneKind::kAuto, "there"}})) {
    ASSERT_TRUE(plane.ok()) << plane.status();
    EXPECT_EQ((*plane)->peer_replicas(), nullptr);
  }
}

TEST(HostPlane_RanksOfTwoHosts_ReachThoseOfTheirOwn, OnAllOfThem) {
  std::vector<HostPlaneChoice> chosen;
  const auto planes =
      PlanesOf({{}, {HostPlaneKind::kAuto, "there"}, {}, {HostPlaneKind::kAuto, "there"}}, &chosen);
  for (size_t rank = 0; rank < planes.size(); ++rank) {
    ASSERT_TRUE(planes[rank].ok()) << planes[rank].status();
    EXPECT_EQ(chosen[rank].way, HostPlaneWay::kNodes);
    ASSERT_NE((*planes[rank])->node(), nullptr);
  }
}

TEST(HostPlane_OneRankOfTwoHostsWithoutMemoryForItsReplica_AllSendEverything, AndKnowWhy) {
  std::vector<HostPlaneChoice> chosen;
  const auto planes = PlanesOf({{},
                                {HostPlaneKind::kAuto, "there", Wish::kNotAllocated},
                                {},
                                {HostPlaneKind::kAuto, "there"}},
                               &chosen);
  for (size_t rank = 0; rank < planes.size(); ++rank) {
    ASSERT_TRUE(planes[rank].ok()) << planes[rank].status();
    EXPECT_EQ((*planes[rank])->node(), nullptr);
    EXPECT_EQ(chosen[rank].way, HostPlaneWay::kGloo);
    EXPECT_EQ(chosen[rank].reason, "a rank could not allocate its replica in shared memory");
    EXPECT_TRUE(chosen[rank].NoticeFor(false).is_warning);
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

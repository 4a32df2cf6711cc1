#include "common/dataplane/host_plane.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/dataplane/gloo/gloo_plane.h"
#include "common/dataplane/nodes_plane.h"
#include "common/dataplane/shm/shm_plane.h"

namespace optshard {
namespace {

absl::StatusOr<std::unique_ptr<DataPlane>> CreateShm(const HostPlaneOptions& options,
                                                     bool with_replica,
                                                     std::vector<Rank> ranks = {}) {
  ShmPlaneOptions shm;
  static_cast<PlaneRequest&>(shm) = options;
  shm.ranks = std::move(ranks);
  if (with_replica) {
    absl::StatusOr<std::shared_ptr<const ReplicaSegments>> replica = options.replica();
    if (!replica.ok()) return replica.status();
    shm.replica = *std::move(replica);
  }
  return CreateShmPlane(shm);
}

absl::StatusOr<std::unique_ptr<DataPlane>> CreateGloo(const HostPlaneOptions& options) {
  GlooPlaneOptions gloo;
  static_cast<PlaneRequest&>(gloo) = options;
  gloo.network = options.network;
  return CreateGlooPlane(gloo);
}

std::string Ranks(const std::vector<Rank>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

absl::string_view How(HostPlaneWay way) {
  switch (way) {
    case HostPlaneWay::kOnePass:
      return "run in one pass over the memory that all ranks share";
    case HostPlaneWay::kShmMessages:
      return "send messages through shared memory";
    case HostPlaneWay::kNodes:
      return "run in one pass over the memory of each node's ranks, and send messages over Gloo "
             "between the nodes";
    case HostPlaneWay::kGloo:
      return "send messages over Gloo";
  }
  return "";
}

constexpr const char* kNotAllocated = "a rank could not allocate its replica in shared memory";
constexpr const char* kAllocate = "give it the memory that is named in its log";

constexpr const char* kGiveReplica =
    "leave the option parameters_as_bucket_view at its default there, and mend what is logged "
    "there";

bool ShareMemory(const RankOffer& a, const RankOffer& b) {
  return !a.identity.empty() && a.identity == b.identity;
}

bool SomeShareMemory(absl::Span<const RankOffer> offers) {
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    for (size_t other = 0; other < rank; ++other) {
      if (ShareMemory(offers[rank], offers[other])) return true;
    }
  }
  return false;
}

// Of ranks on several hosts: kNodes, or why not. Sums within shared memory are those of the plan's
// groups, which follow from the nodes' names; who shares memory with whom is found out.
HostPlaneChoice ChooseBetweenNodes(absl::Span<const RankOffer> offers, const ReductionTree& tree) {
  if (!SomeShareMemory(offers)) return {HostPlaneWay::kGloo, "", ""};
  bool has_node = false;
  for (const std::vector<Rank>& group : tree.node_groups) {
    has_node = has_node || group.size() > 1;
    for (const Rank rank : group) {
      if (rank == group[0] || ShareMemory(offers[rank], offers[group[0]])) continue;
      return {HostPlaneWay::kGloo,
              absl::StrCat(Ranks(group), " have one node name and do not all share memory"),
              "give the ranks of each host a node name of their own (the option node, "
              "OPTSHARD_NODE), and run them as one user, in one network namespace and one process "
              "namespace"};
    }
  }
  if (has_node) return {HostPlaneWay::kNodes, "", ""};
  return {HostPlaneWay::kGloo, "every rank has a node name of its own",
          "give the ranks of a host the same node name (the option node, OPTSHARD_NODE)"};
}

absl::StatusOr<std::unique_ptr<DataPlane>> CreateNodes(const HostPlaneOptions& options,
                                                       HostPlaneChoice* choice) {
  std::vector<Rank> ranks;
  for (const std::vector<Rank>& group : options.tree.node_groups) {
    if (std::find(group.begin(), group.end(), options.rank) != group.end()) ranks = group;
  }
  std::sort(ranks.begin(), ranks.end());
  absl::StatusOr<std::unique_ptr<DataPlane>> all = CreateGloo(options);
  if (!all.ok()) return all;
  absl::StatusOr<std::unique_ptr<DataPlane>> node = CreateShm(options, true, ranks);
  if (!node.ok()) return node;
  // Where one node has no replicas, no rank uses them.
  const char own = (*node)->peer_replicas() == nullptr ? 0 : 1;
  std::vector<char> of_all(options.world_size);
  StepTag tag;
  tag.generation = options.generation;
  absl::StatusOr<std::unique_ptr<Ticket>> ticket =
      (*all)->AllGather(tag, ExecutionContext(), &own, of_all.data(), 1);
  if (!ticket.ok()) return ticket.status();
  absl::Status told = (*ticket)->Wait(options.deadline);
  if (!told.ok()) return told;
  if (std::find(of_all.begin(), of_all.end(), 0) != of_all.end()) {
    *choice = {HostPlaneWay::kGloo, kNotAllocated, kAllocate};
    return all;
  }
  return JoinPlanes(*std::move(all), *std::move(node), std::move(ranks));
}

}  // namespace

absl::string_view NameOf(HostPlaneKind kind) {
  switch (kind) {
    case HostPlaneKind::kAuto:
      return "auto";
    case HostPlaneKind::kShm:
      return "shm";
    case HostPlaneKind::kGloo:
      return "gloo";
  }
  return "unknown";
}

absl::StatusOr<HostPlaneKind> ParseHostPlaneKind(absl::string_view name) {
  for (const HostPlaneKind kind :
       {HostPlaneKind::kAuto, HostPlaneKind::kShm, HostPlaneKind::kGloo}) {
    if (name == NameOf(kind)) return kind;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown data plane \"", name, "\"; known are auto, shm, gloo"));
}

PlaneNotice HostPlaneChoice::NoticeFor(bool told_to) const {
  PlaneNotice notice;
  if (way == HostPlaneWay::kOnePass) {
    notice.text = absl::StrCat("steps ", How(way));
    return notice;
  }
  notice.text = absl::StrCat("steps ", How(way), ", because ", reason);
  if (remedy.empty()) return notice;
  absl::StrAppend(&notice.text, "; they could run several times as fast: ", remedy);
  notice.is_warning = !told_to;
  return notice;
}

HostPlaneChoice ChooseHostPlane(absl::Span<const RankOffer> offers, const ReductionTree& tree) {
  std::vector<Rank> gloo;
  std::vector<Rank> elsewhere;  // as seen from rank 0
  std::vector<Rank> without_replica;
  bool one_kernel = true;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const RankOffer& offer = offers[rank];
    if (offer.asks_for_gloo) gloo.push_back(static_cast<Rank>(rank));
    if (!ShareMemory(offer, offers[0])) {
      elsewhere.push_back(static_cast<Rank>(rank));
      one_kernel = one_kernel && OnOneKernel(offer.identity, offers[0].identity);
    }
    if (!offer.has_replica) without_replica.push_back(static_cast<Rank>(rank));
  }
  if (!gloo.empty()) {
    return {HostPlaneWay::kGloo, absl::StrCat(Ranks(gloo), " asked for \"gloo\""),
            elsewhere.empty()
                ? "all ranks can share memory, so leave the option \"plane\" at \"auto\""
                : ""};
  }
  const std::string no_replica =
      absl::StrCat("the parameters of ", Ranks(without_replica), " are not in shared memory");
  if (!elsewhere.empty()) {
    HostPlaneChoice choice = ChooseBetweenNodes(offers, tree);
    const std::string apart = absl::StrCat(
        Ranks(elsewhere),
        " cannot share memory with rank 0 (another host, user, network namespace or process "
        "namespace)");
    choice.reason = choice.reason.empty() ? apart : absl::StrCat(apart, ", and ", choice.reason);
    if (choice.remedy.empty() && choice.way == HostPlaneWay::kNodes && !without_replica.empty()) {
      return {HostPlaneWay::kGloo, absl::StrCat(apart, ", and ", no_replica), kGiveReplica};
    }
    if (choice.remedy.empty() && one_kernel) {
      choice.remedy =
          "all ranks run on one host, so run them as one user, in one network namespace and one "
          "process namespace";
    }
    return choice;
  }
  if (!without_replica.empty()) return {HostPlaneWay::kShmMessages, no_replica, kGiveReplica};
  return {HostPlaneWay::kOnePass, "", ""};
}

absl::StatusOr<std::unique_ptr<DataPlane>> CreateHostPlane(const HostPlaneOptions& options) {
  const RankOffer own = {options.identity, options.kind == HostPlaneKind::kGloo,
                         options.replica != nullptr};
  const absl::StatusOr<std::vector<RankOffer>> offers =
      ExchangeOffers(*options.rendezvous, options.rank, options.world_size, own, options.deadline);
  if (!offers.ok()) return offers.status();
  HostPlaneChoice choice = ChooseHostPlane(*offers, options.tree);
  const bool between_hosts =
      choice.way == HostPlaneWay::kGloo || choice.way == HostPlaneWay::kNodes;
  if (between_hosts && options.kind == HostPlaneKind::kShm) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", options.rank, " of ", options.world_size,
        " was given the data plane \"shm\", but ", choice.reason, "; give \"auto\" or \"gloo\""));
  }
  absl::StatusOr<std::unique_ptr<DataPlane>> plane =
      choice.way == HostPlaneWay::kGloo ? CreateGloo(options)
      : choice.way == HostPlaneWay::kNodes
          ? CreateNodes(options, &choice)
          : CreateShm(options, choice.way == HostPlaneWay::kOnePass);
  if (plane.ok() && choice.way == HostPlaneWay::kOnePass && (*plane)->peer_replicas() == nullptr) {
    choice = {HostPlaneWay::kShmMessages, kNotAllocated, kAllocate};
  }
  if (plane.ok() && options.chosen != nullptr) *options.chosen = std::move(choice);
  return plane;
}

}  // namespace optshard

#include "common/dataplane/host_plane.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/dataplane/gloo/gloo_plane.h"
#include "common/dataplane/shm/shm_plane.h"

namespace optshard {
namespace {

absl::StatusOr<std::unique_ptr<DataPlane>> CreateShm(const HostPlaneOptions& options,
                                                     bool with_replica) {
  ShmPlaneOptions shm;
  static_cast<PlaneRequest&>(shm) = options;
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
    notice.text = "steps run in one pass over the memory that all ranks share";
    return notice;
  }
  notice.text = absl::StrCat("steps send messages ",
                             way == HostPlaneWay::kGloo ? "over Gloo" : "through shared memory",
                             ", because ", reason);
  if (remedy.empty()) return notice;
  absl::StrAppend(&notice.text, "; they could run several times as fast: ", remedy);
  notice.is_warning = !told_to;
  return notice;
}

HostPlaneChoice ChooseHostPlane(absl::Span<const RankOffer> offers) {
  std::vector<Rank> gloo;
  std::vector<Rank> elsewhere;  // as seen from rank 0
  std::vector<Rank> without_replica;
  bool one_kernel = true;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const RankOffer& offer = offers[rank];
    if (offer.asks_for_gloo) gloo.push_back(static_cast<Rank>(rank));
    if (offer.identity.empty() || offer.identity != offers[0].identity) {
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
  if (!elsewhere.empty()) {
    return {HostPlaneWay::kGloo,
            absl::StrCat(Ranks(elsewhere),
                         " cannot share memory with rank 0 (another host, user, network namespace "
                         "or process namespace)"),
            one_kernel ? "all ranks run on one host, so run them as one user, in one network "
                         "namespace and one process namespace"
                       : ""};
  }
  if (!without_replica.empty()) {
    return {HostPlaneWay::kShmMessages,
            absl::StrCat("the parameters of ", Ranks(without_replica), " are not in shared memory"),
            "leave the option parameters_as_bucket_view at its default there, and mend what is "
            "logged there"};
  }
  return {HostPlaneWay::kOnePass, "", ""};
}

absl::StatusOr<std::unique_ptr<DataPlane>> CreateHostPlane(const HostPlaneOptions& options) {
  const RankOffer own = {options.identity, options.kind == HostPlaneKind::kGloo,
                         options.replica != nullptr};
  const absl::StatusOr<std::vector<RankOffer>> offers =
      ExchangeOffers(*options.rendezvous, options.rank, options.world_size, own, options.deadline);
  if (!offers.ok()) return offers.status();
  HostPlaneChoice choice = ChooseHostPlane(*offers);
  if (choice.way == HostPlaneWay::kGloo && options.kind == HostPlaneKind::kShm) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", options.rank, " of ", options.world_size,
        " was given the data plane \"shm\", but ", choice.reason, "; give \"auto\" or \"gloo\""));
  }
  absl::StatusOr<std::unique_ptr<DataPlane>> plane =
      choice.way == HostPlaneWay::kGloo ? CreateGloo(options)
                                        : CreateShm(options, choice.way == HostPlaneWay::kOnePass);
  if (plane.ok() && choice.way == HostPlaneWay::kOnePass && (*plane)->peer_replicas() == nullptr) {
    choice = {HostPlaneWay::kShmMessages, "a rank could not allocate its replica in shared memory",
              "give it the memory that is named in its log"};
  }
  if (plane.ok() && options.chosen != nullptr) *options.chosen = choice;
  return plane;
}

}  // namespace optshard

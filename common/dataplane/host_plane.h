// The data plane between processes on hosts' CPUs: shared memory where all ranks run on one host,
// Gloo between hosts, beside shared memory within each of them where their ranks have some.
#ifndef OPTSHARD_COMMON_DATAPLANE_HOST_PLANE_H_
#define OPTSHARD_COMMON_DATAPLANE_HOST_PLANE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/dataplane/co_location.h"
#include "common/dataplane/data_plane.h"
#include "common/dataplane/plane_notice.h"
#include "common/dataplane/plane_request.h"
#include "common/dataplane/shm/replica_segments.h"
#include "common/plan.h"

namespace optshard {

enum class HostPlaneKind {
  kAuto,  // shared memory if all ranks can, else Gloo
  kShm,   // shared memory between all ranks, or an error
  kGloo,  // Gloo for all ranks, whatever the others ask for
};
absl::string_view NameOf(HostPlaneKind kind);  // "auto", "shm", "gloo"
// INVALID_ARGUMENT, listing the known names, for any other text.
absl::StatusOr<HostPlaneKind> ParseHostPlaneKind(absl::string_view name);

// How gradients and parameters travel, the fastest way first.
enum class HostPlaneWay {
  kOnePass,      // every rank reads and writes the replicas of all ranks
  kShmMessages,  // messages through shared memory
  kNodes,        // one pass within each node, messages over Gloo between nodes
  kGloo,         // messages over Gloo
};

struct HostPlaneChoice {
  HostPlaneWay way = HostPlaneWay::kGloo;
  std::string reason;  // for people: why no faster way; empty for the fastest
  std::string remedy;  // for people: what would make it faster; empty where nothing would

  // For a rank that was told to do without a faster way, or was not.
  PlaneNotice NoticeFor(bool told_to) const;
};

// What all ranks use, given what each of them offers. The node groups of `tree` are the nodes.
HostPlaneChoice ChooseHostPlane(absl::Span<const RankOffer> offers, const ReductionTree& tree);

struct HostPlaneOptions : PlaneRequest {
  HostPlaneKind kind = HostPlaneKind::kAuto;
  std::string network = "lo";  // of Gloo: an interface by name, or a numeric address of one

  // Creates this rank's replica, laid out by `layout`, for the other ranks of its host to reach
  // directly. It is called only once all ranks are known to have one, and to share the host or to
  // be on nodes that each share one; its error is returned. Without the function, or where it
  // returns null on any rank, no rank reaches another's replica.
  std::function<absl::StatusOr<std::shared_ptr<const ReplicaSegments>>()> replica;

  std::string identity = SharingIdentity();

  HostPlaneChoice* chosen = nullptr;  // set once the plane is connected; not owned
};

// Connects to all other ranks. They need not ask for the same kind, but all get the same one.
// FAILED_PRECONDITION for kShm where a rank runs elsewhere or asks for Gloo; otherwise errors as
// ExchangeOffers, CreateShmPlane and CreateGlooPlane.
absl::StatusOr<std::unique_ptr<DataPlane>> CreateHostPlane(const HostPlaneOptions& options);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_HOST_PLANE_H_

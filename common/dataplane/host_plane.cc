#include "common/dataplane/host_plane.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/dataplane/gloo/gloo_plane.h"
#include "common/dataplane/shm/shm_plane.h"

namespace optshard {
namespace {

absl::StatusOr<std::unique_ptr<DataPlane>> CreateShm(const HostPlaneOptions& options) {
  ShmPlaneOptions shm;
  static_cast<PlaneRequest&>(shm) = options;
  if (options.replica != nullptr) {
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

absl::StatusOr<std::unique_ptr<DataPlane>> CreateHostPlane(const HostPlaneOptions& options) {
  // "" is nobody's identity: one rank that wants Gloo decides for all.
  absl::StatusOr<bool> one_host = AllShareOneHost(
      *options.rendezvous, options.rank, options.world_size,
      options.kind == HostPlaneKind::kGloo ? std::string() : options.identity, options.deadline);
  if (!one_host.ok()) return one_host.status();
  if (*one_host) return CreateShm(options);
  if (options.kind == HostPlaneKind::kShm) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", options.rank, " of ", options.world_size,
        " is to share memory with all ranks (data plane \"shm\"), but not all of them run on this "
        "host, as this user, or some ask for \"gloo\"; give \"auto\" or \"gloo\""));
  }
  return CreateGloo(options);
}

}  // namespace optshard

// The data plane between processes on hosts' CPUs: shared memory where all ranks run on one host,
// Gloo otherwise.
#ifndef OPTSHARD_COMMON_DATAPLANE_HOST_PLANE_H_
#define OPTSHARD_COMMON_DATAPLANE_HOST_PLANE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/dataplane/co_location.h"
#include "common/dataplane/data_plane.h"
#include "common/dataplane/plane_request.h"
#include "common/dataplane/shm/replica_segments.h"

namespace optshard {

enum class HostPlaneKind {
  kAuto,  // shared memory if all ranks can, else Gloo
  kShm,   // shared memory, or an error
  kGloo,  // Gloo for all ranks, whatever the others ask for
};
absl::string_view NameOf(HostPlaneKind kind);  // "auto", "shm", "gloo"
// INVALID_ARGUMENT, listing the known names, for any other text.
absl::StatusOr<HostPlaneKind> ParseHostPlaneKind(absl::string_view name);

struct HostPlaneOptions : PlaneRequest {
  HostPlaneKind kind = HostPlaneKind::kAuto;
  std::string network = "lo";  // of Gloo: an interface by name, or a numeric address of one

  // For shared memory: returns what the other ranks may access of this rank's replica, which is
  // laid out by `layout`. Called once it is known that all ranks share the host. Its error is
  // returned. Empty: no rank accesses another rank's replica.
  std::function<absl::StatusOr<std::shared_ptr<const ReplicaSegments>>()> replica;

  std::string identity = SharingIdentity();
};

// Connects to all other ranks. Ranks may ask for different kinds; all get the same one.
// FAILED_PRECONDITION for kShm where a rank runs on another host or asks for Gloo. Other errors are
// those of AllShareOneHost, CreateShmPlane and CreateGlooPlane.
absl::StatusOr<std::unique_ptr<DataPlane>> CreateHostPlane(const HostPlaneOptions& options);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_HOST_PLANE_H_

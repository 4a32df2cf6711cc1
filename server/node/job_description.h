// What people know of a job before it runs, and the memory that its ranks will need.
#ifndef OPTSHARD_SERVER_NODE_JOB_DESCRIPTION_H_
#define OPTSHARD_SERVER_NODE_JOB_DESCRIPTION_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "common/checked_math.h"
#include "common/dataplane/host_plane.h"
#include "common/dtype.h"
#include "common/gradient_mode.h"
#include "common/ids.h"
#include "common/parameter_space.h"
#include "common/partition.h"
#include "common/state_options.h"
#include "server/node/memory_need.h"

namespace optshard {

// Thread-compatible value type.
struct JobDescription {
  int world_size = 0;
  std::set<Rank> ranks;  // of this node
  std::string rule = "adam";
  PartitionPolicy policy = PartitionPolicy::kGreedy;
  GradientMode gradient_mode = GradientMode::kReduce;
  StateOptions state;
  bool main_gradients = false;  // of the 16-bit parameters
  bool share_parameters = false;
  HostPlaneKind plane = HostPlaneKind::kAuto;
  int threads = 0;  // of the update; 0: as many as this machine has CPUs
};

// A model of which only the size is known, as matrices of equal size that all ranks own alike: it
// has a little more than `elements`. So it tells nothing of a large parameter that one rank owns
// whole. INVALID_ARGUMENT for less than one element or rank.
absl::StatusOr<ParameterSpace> SpaceOfElements(int64_t elements, DType dtype, int world_size);

// The floating-point tensors of a .safetensors file, in the order of the file, as one param group.
// INVALID_ARGUMENT naming the file where there is none, and as ReadSafetensorsHeader; the errors of
// the file system.
absl::StatusOr<ParameterSpace> SpaceOfModel(const std::string& path);

struct NodeMemoryNeed {
  // Segments are whole pages, with one more for a label: at most what all those of a rank add.
  static constexpr int64_t kRoundingBytes = int64_t{16} * 4096;

  struct OfRank {
    MemoryNeed need;
    int64_t total() const { return SaturatingAdd(need.total(), kRoundingBytes); }
    // What the copies of one snapshot, such as a checkpoint makes, take beside that.
    int64_t snapshot_bytes = 0;
  };
  std::map<Rank, OfRank> ranks;

  // Of all ranks. INT64_MAX where it would be larger.
  int64_t total() const;  // without snapshots
  int64_t snapshot_bytes() const;
};

// INVALID_ARGUMENT as OptimizerSpec::Validate and MemoryNeedOf, and where the node has a rank that
// the job has not. Thread-safe.
absl::StatusOr<NodeMemoryNeed> NodeMemoryNeedOf(const JobDescription& job,
                                                const ParameterSpace& space);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_JOB_DESCRIPTION_H_

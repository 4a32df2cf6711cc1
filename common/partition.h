// Who owns what: a pure function of the parameter space, the world size and a policy.
#ifndef OPTSHARD_COMMON_PARTITION_H_
#define OPTSHARD_COMMON_PARTITION_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"
#include "common/parameter_space.h"

namespace optshard {

// Values are stable: they are part of messages.
enum class PartitionPolicy : uint8_t {
  // Whole parameters; group by group, sorted by element count descending (stable), each to the
  // least loaded rank, ties to the lowest; loads carry over from group to group. PyTorch's
  // ZeroRedundancyOptimizer makes exactly this assignment.
  kGreedy = 1,
  // As kGreedy without the sort: the early ZeroRedundancyOptimizer and fairscale's OSS.
  kGreedyInOrder = 2,
  // Element-wise: cuts fall on multiples of kBalancedBlock elements of a parameter, every owner is
  // within one block of the same bytes. For element-wise update rules only.
  kBalanced = 3,
  // Every rank owns everything: the unsharded run that sharded ones are compared with.
  kReplicated = 4,
};

constexpr int64_t kBalancedBlock = 1024;  // elements

absl::string_view NameOf(PartitionPolicy policy);  // "greedy", "greedy_in_order", ...
// INVALID_ARGUMENT, listing the known names, for any other text.
absl::StatusOr<PartitionPolicy> ParsePartitionPolicy(absl::string_view name);

// A contiguous range of a parameter's elements.
struct Slice {
  int32_t parameter = 0;
  int64_t offset_elements = 0;
  int64_t elements = 0;

  friend bool operator==(const Slice& a, const Slice& b) {
    return a.parameter == b.parameter && a.offset_elements == b.offset_elements &&
           a.elements == b.elements;
  }
};

// slices[rank], ordered by (parameter, offset). A zero-size parameter is one slice of 0 elements.
struct Partition {
  std::vector<std::vector<Slice>> slices;
};

// INVALID_ARGUMENT where world_size < 1 or the space does not validate.
absl::StatusOr<Partition> MakePartition(const ParameterSpace& space, int world_size,
                                        PartitionPolicy policy);

// That every element of every parameter has exactly one owner (kReplicated: every rank owns every
// element once). INTERNAL naming the first parameter for which it does not hold.
absl::Status CheckPartition(const ParameterSpace& space, const Partition& partition,
                            PartitionPolicy policy);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_PARTITION_H_

// The partition: which rank owns which elements of which parameter. It follows from the parameter
// space, the world size and a policy alone. All functions here are pure and thread-safe.
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

// The numbers do not change between versions, because messages carry them.
enum class PartitionPolicy : uint8_t {
  // Assigns whole parameters, group by group. Within a group the parameters are sorted by element
  // count, the largest first; the sort is stable. Each goes to the rank that owns the fewest
  // elements so far, counting all groups; of several such ranks, to the lowest. This is exactly the
  // assignment of PyTorch's ZeroRedundancyOptimizer.
  kGreedy = 1,
  // As kGreedy, without the sort. This is the assignment of fairscale's OSS and of early versions
  // of ZeroRedundancyOptimizer.
  kGreedyInOrder = 2,
  // Splits parameters between ranks, at multiples of kBalancedBlock elements, each admission by
  // itself. Each rank's bytes of an admission's parameters differ from the mean by less than one
  // block. Requires an element-wise update rule.
  kBalanced = 3,
  // Every rank owns all elements. This is the unsharded run that sharded runs are compared with.
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

struct Partition {
  // By rank, ordered by parameter and offset. A parameter without elements has one slice, of 0
  // elements.
  std::vector<std::vector<Slice>> slices;
};

// What came by a later admission changes no slice of an earlier one's.
// INVALID_ARGUMENT where world_size < 1, or as ParameterSpace::Validate.
absl::StatusOr<Partition> MakePartition(const ParameterSpace& space, int world_size,
                                        PartitionPolicy policy);

// Checks that every element of every parameter has exactly one owner or, with kReplicated, that
// every rank owns every element once. INTERNAL naming the first parameter for which this is not so.
absl::Status CheckPartition(const ParameterSpace& space, const Partition& partition,
                            PartitionPolicy policy);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_PARTITION_H_

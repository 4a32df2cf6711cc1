// Finds the first parameter of which the ranks do not have the same bits, by comparing digests: of
// a few ranges of parameters first, then of parts of the first range that differs, until it is one
// parameter. So little travels, however many parameters there are. Thread-safe functions.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_REPLICA_COMPARISON_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_REPLICA_COMPARISON_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/host_transfer.h"
#include "common/parameter_space.h"
#include "server/shard/engine/step_input.h"

namespace optshard {

// Parameters [begin, end).
struct ParameterRange {
  int begin = 0;
  int end = 0;

  int size() const { return end - begin; }
};

// Of how many parts the ranks compare digests at a time. Three times are enough for kMaxParameters.
constexpr int kComparedParts = 64;

// By parameter, a digest of the bits of its elements, which the transfer reads; its errors.
absl::StatusOr<std::vector<uint64_t>> DigestParameters(const ParameterSpace& space,
                                                       absl::Span<const ReplicaTensor> replica,
                                                       HostTransfer& transfer, absl::Time deadline);

// The range's part of this number, of kComparedParts. All have the same size, but for the last.
// Parts beyond its end are empty.
ParameterRange PartOf(ParameterRange range, int part);

// By part, a digest of the parameters' digests. All ranks make them of the same range.
std::vector<uint64_t> DigestParts(absl::Span<const uint64_t> digests, ParameterRange range);

// `gathered` are the parts' digests of one rank after the other. nullopt where all are equal.
absl::optional<int> FirstDifferentPart(absl::Span<const uint64_t> gathered);

// RanksDisagree naming the parameter. The ranks that differ are those that do not have what most
// have, or what rank 0 has where as many have that. `gathered` as above; the part is that
// parameter.
absl::Status ReplicasDiffer(const ParameterSpace& space, int parameter,
                            absl::Span<const uint64_t> gathered, int part);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_REPLICA_COMPARISON_H_

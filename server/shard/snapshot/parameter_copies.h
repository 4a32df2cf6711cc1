// The parameters of what a rank owns, as its replica had them when a snapshot was opened.
#ifndef OPTSHARD_SERVER_SHARD_SNAPSHOT_PARAMETER_COPIES_H_
#define OPTSHARD_SERVER_SHARD_SNAPSHOT_PARAMETER_COPIES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/generation_shape.h"
#include "common/ids.h"
#include "server/shard/snapshot/parameter_memory.h"
#include "server/shard/snapshot/shard_snapshot.h"
#include "server/shard/snapshot/snapshot_memory.h"

namespace optshard {

// The name of their parts.
constexpr char kParameterPart[] = "parameter";

// Copied at once: unlike state, parameters lie where their trainer may write at any time.
// Thread-compatible.
class ParameterCopies {
 public:
  static int64_t BytesFor(const std::shared_ptr<const GenerationShape>& shape, Rank rank);

  // Errors as SnapshotMemory::Take.
  static absl::StatusOr<std::unique_ptr<ParameterCopies>> Allocate(
      std::shared_ptr<const GenerationShape> shape, Rank rank, SnapshotMemory& memory);

  // A part for each slice of the rank's.
  const std::vector<ShardSnapshot::Part>& parts() const { return parts_; }
  const char* At(int part) const { return copies_.get() + places_[part]; }

  // False where `memory` is not of the shape's parameters.
  bool Copy(const ParameterMemory& memory);

 private:
  ParameterCopies(std::shared_ptr<const GenerationShape> shape, Rank rank);

  const std::shared_ptr<const GenerationShape> shape_;
  std::vector<ShardSnapshot::Part> parts_;
  std::vector<int64_t> places_;  // of parts_, in copies_
  int64_t bytes_ = 0;
  SnapshotMemory::Piece copies_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SNAPSHOT_PARAMETER_COPIES_H_

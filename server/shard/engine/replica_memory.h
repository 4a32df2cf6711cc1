// Where the buckets of one rank's replica lie: in place where that is safe, packed otherwise.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_REPLICA_MEMORY_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_REPLICA_MEMORY_H_

#include "absl/types/span.h"
#include "common/bucket.h"
#include "server/shard/engine/step_input.h"

namespace optshard {

// A bucket is "in place" where its elements stand in memory as they do in the bucket and no byte
// that is not a tensor's own is touched, unless the caller vouches for the padding (ReplicaRegion).
// Thread-compatible; the spans outlive it.
class ReplicaMemory {
 public:
  ReplicaMemory(absl::Span<const ReplicaTensor> tensors, absl::Span<const ReplicaRegion> regions)
      : tensors_(tensors), regions_(regions) {}

  absl::Span<const ReplicaTensor> tensors() const { return tensors_; }
  const ReplicaTensor& tensor(int parameter) const { return tensors_[parameter]; }

  // Null where the bucket must be packed.
  float* ParametersInPlace(const Bucket& bucket) const;
  const float* GradientsInPlace(const Bucket& bucket) const;  // null also where one is missing

  // The padding becomes zero, and so does a gradient that is missing.
  void PackParameters(const Bucket& bucket, float* to) const;
  void PackGradients(const Bucket& bucket, float* to) const;
  void UnpackParameters(const Bucket& bucket, const float* from) const;

 private:
  absl::Span<const ReplicaTensor> tensors_;
  absl::Span<const ReplicaRegion> regions_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_REPLICA_MEMORY_H_

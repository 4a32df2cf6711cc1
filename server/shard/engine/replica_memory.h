// Where the buckets of one rank's replica lie: in place where that is safe, packed otherwise.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_REPLICA_MEMORY_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_REPLICA_MEMORY_H_

#include <vector>

#include "absl/types/span.h"
#include "common/bucket.h"
#include "common/buffer.h"
#include "common/dtype.h"
#include "server/shard/engine/step_input.h"

namespace optshard {

// Tensors and regions are of their buckets' dtypes. A bucket is "in place" where its elements stand
// in memory as they do in the bucket and no byte that is not a tensor's own is touched, unless the
// caller vouches for the padding (ReplicaRegion). Thread-compatible; the spans outlive it.
class ReplicaMemory {
 public:
  ReplicaMemory(absl::Span<const ReplicaTensor> tensors, absl::Span<const ReplicaRegion> regions,
                void* stream = nullptr)
      : tensors_(tensors), regions_(regions), stream_(stream) {}

  absl::Span<const ReplicaTensor> tensors() const { return tensors_; }
  const ReplicaTensor& tensor(int parameter) const { return tensors_[parameter]; }
  void* stream() const { return stream_; }  // StepInput::stream

  // Null where the bucket must be packed.
  void* ParametersInPlace(const Bucket& bucket) const;
  const void* GradientsInPlace(const Bucket& bucket) const;  // null also where one is missing

  // Of a replica in memory of the host. The padding becomes zero, and so does a gradient that is
  // missing, or that has not the rows.
  void PackParameters(const Bucket& bucket, void* to) const;
  void PackGradients(const Bucket& bucket, void* to) const;
  void UnpackParameters(const Bucket& bucket, const void* from) const;

  // The same for a bucket of float32 parameters that travels in a 16-bit type: those that `updated`
  // lists, by parameter, which are values of that type. Want the default floating-point mode.
  void PackParametersAs(DType half, const Bucket& bucket, const std::vector<bool>& updated,
                        void* to) const;
  void UnpackParametersOf(DType half, const Bucket& bucket, const std::vector<bool>& updated,
                          const void* from) const;

 private:
  // From the span's first element on. A span of a sparse gradient is of rows that it has, or of
  // rows that it has not, for which there is no array.
  Buffer ParameterOf(const BucketSpan& span) const;
  ConstBuffer GradientOf(const BucketSpan& span) const;

  absl::Span<const ReplicaTensor> tensors_;
  absl::Span<const ReplicaRegion> regions_;
  void* stream_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_REPLICA_MEMORY_H_

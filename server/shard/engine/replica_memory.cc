#include "server/shard/engine/replica_memory.h"

#include <cstdint>
#include <cstring>

#include "common/dtype_conversion.h"

namespace optshard {
namespace {

// `array_of` gives where a span's elements begin, or no array. `region` is the caller's flat
// memory, or no array.
template <typename Array, typename ArrayOf>
Array InPlace(const Bucket& bucket, Array region, const ArrayOf& array_of) {
  if (bucket.spans.empty()) return nullptr;
  if (bucket.contiguous && region) {
    const Array base = region.From(bucket.region_offset_elements);
    bool all_there = true;
    for (const BucketSpan& span : bucket.spans) {
      all_there = all_there && array_of(span) == base.From(span.bucket_offset_elements);
    }
    if (all_there) return base;
  }
  const Array base = array_of(bucket.spans.front());
  if (!base) return nullptr;
  int64_t reached = 0;
  for (const BucketSpan& span : bucket.spans) {
    if (span.bucket_offset_elements != reached || array_of(span) != base.From(reached)) {
      return nullptr;
    }
    reached += span.elements;
  }
  return reached == bucket.elements ? base : nullptr;
}

template <typename ArrayOf>
void Pack(const Bucket& bucket, Buffer packed, const ArrayOf& array_of) {
  const size_t element = SizeOf(packed.dtype());
  int64_t reached = 0;
  const auto zero_up_to = [&](int64_t end) {
    std::memset(packed.From(reached).data(), 0, (end - reached) * element);
    reached = end;
  };
  for (const BucketSpan& span : bucket.spans) {
    zero_up_to(span.bucket_offset_elements);
    const ConstBuffer from = array_of(span);
    if (!from) {
      zero_up_to(reached + span.elements);
    } else {
      std::memcpy(packed.From(reached).data(), from.data(), span.elements * element);
      reached += span.elements;
    }
  }
  zero_up_to(bucket.elements);
}

}  // namespace

Buffer ReplicaMemory::ParameterOf(const BucketSpan& span) const {
  return tensors_[span.parameter].parameter.From(span.parameter_offset_elements);
}

ConstBuffer ReplicaMemory::GradientOf(const BucketSpan& span) const {
  const ReplicaTensor& tensor = tensors_[span.parameter];
  if (!tensor.gradient_rows.Has(span.parameter_offset_elements)) return nullptr;
  return tensor.gradient.From(span.parameter_offset_elements);
}

void* ReplicaMemory::ParametersInPlace(const Bucket& bucket) const {
  const Buffer region = regions_.empty() ? Buffer() : regions_[bucket.region].parameters;
  return InPlace(bucket, region, [this](const BucketSpan& span) { return ParameterOf(span); })
      .data();
}

const void* ReplicaMemory::GradientsInPlace(const Bucket& bucket) const {
  const ConstBuffer region = regions_.empty() ? Buffer() : regions_[bucket.region].gradients;
  return InPlace(bucket, region, [this](const BucketSpan& span) { return GradientOf(span); })
      .data();
}

void ReplicaMemory::PackParameters(const Bucket& bucket, void* to) const {
  Pack(bucket, Buffer(to, bucket.dtype),
       [this](const BucketSpan& span) { return ParameterOf(span); });
}

void ReplicaMemory::PackGradients(const Bucket& bucket, void* to) const {
  Pack(bucket, Buffer(to, bucket.gradient_dtype),
       [this](const BucketSpan& span) { return GradientOf(span); });
}

void ReplicaMemory::UnpackParameters(const Bucket& bucket, const void* from) const {
  const ConstBuffer packed(from, bucket.dtype);
  for (const BucketSpan& span : bucket.spans) {
    std::memcpy(ParameterOf(span).data(), packed.From(span.bucket_offset_elements).data(),
                span.elements * SizeOf(bucket.dtype));
  }
}

void ReplicaMemory::PackParametersAs(DType half, const Bucket& bucket,
                                     const std::vector<bool>& updated, void* to) const {
  std::memset(to, 0, bucket.elements * SizeOf(half));
  for (const BucketSpan& span : bucket.spans) {
    if (!updated[span.parameter]) continue;
    Narrow(half, ParameterOf(span).As<float>(), span.elements,
           Buffer(to, half).From(span.bucket_offset_elements).data());
  }
}

void ReplicaMemory::UnpackParametersOf(DType half, const Bucket& bucket,
                                       const std::vector<bool>& updated, const void* from) const {
  for (const BucketSpan& span : bucket.spans) {
    if (!updated[span.parameter]) continue;
    Widen(half, ConstBuffer(from, half).From(span.bucket_offset_elements).data(), span.elements,
          ParameterOf(span).As<float>());
  }
}

}  // namespace optshard

#include "server/shard/engine/replica_memory.h"

#include <cstdint>
#include <cstring>

namespace optshard {
namespace {

// `address_of` gives a span's first element, or null. `region` is the caller's flat memory, or
// null.
template <typename T, typename AddressOf>
T* InPlace(const Bucket& bucket, T* region, const AddressOf& address_of) {
  if (bucket.spans.empty()) return nullptr;
  if (bucket.contiguous && region != nullptr) {
    T* const base = region + bucket.region_offset_elements;
    bool all_there = true;
    for (const BucketSpan& span : bucket.spans) {
      all_there = all_there && address_of(span) == base + span.bucket_offset_elements;
    }
    if (all_there) return base;
  }
  T* const base = address_of(bucket.spans.front());
  if (base == nullptr) return nullptr;
  int64_t reached = 0;
  for (const BucketSpan& span : bucket.spans) {
    if (span.bucket_offset_elements != reached || address_of(span) != base + reached) {
      return nullptr;
    }
    reached += span.elements;
  }
  return reached == bucket.elements ? base : nullptr;
}

template <typename AddressOf>
void Pack(const Bucket& bucket, float* to, const AddressOf& address_of) {
  int64_t reached = 0;
  const auto zero_up_to = [&](int64_t end) {
    std::memset(to + reached, 0, (end - reached) * sizeof(float));
    reached = end;
  };
  for (const BucketSpan& span : bucket.spans) {
    zero_up_to(span.bucket_offset_elements);
    const float* const from = address_of(span);
    if (from == nullptr) {
      zero_up_to(reached + span.elements);
    } else {
      std::memcpy(to + reached, from, span.elements * sizeof(float));
      reached += span.elements;
    }
  }
  zero_up_to(bucket.elements);
}

}  // namespace

float* ReplicaMemory::ParametersInPlace(const Bucket& bucket) const {
  float* const region = regions_.empty() ? nullptr : regions_[bucket.region].parameters;
  return InPlace<float>(bucket, region, [this](const BucketSpan& span) -> float* {
    float* const start = tensors_[span.parameter].parameter;
    return start == nullptr ? nullptr : start + span.parameter_offset_elements;
  });
}

const float* ReplicaMemory::GradientsInPlace(const Bucket& bucket) const {
  const float* const region = regions_.empty() ? nullptr : regions_[bucket.region].gradients;
  return InPlace<const float>(bucket, region, [this](const BucketSpan& span) -> const float* {
    const float* const start = tensors_[span.parameter].gradient;
    return start == nullptr ? nullptr : start + span.parameter_offset_elements;
  });
}

void ReplicaMemory::PackParameters(const Bucket& bucket, float* to) const {
  Pack(bucket, to, [this](const BucketSpan& span) -> const float* {
    return tensors_[span.parameter].parameter + span.parameter_offset_elements;
  });
}

void ReplicaMemory::PackGradients(const Bucket& bucket, float* to) const {
  Pack(bucket, to, [this](const BucketSpan& span) -> const float* {
    const float* const start = tensors_[span.parameter].gradient;
    return start == nullptr ? nullptr : start + span.parameter_offset_elements;
  });
}

void ReplicaMemory::UnpackParameters(const Bucket& bucket, const float* from) const {
  for (const BucketSpan& span : bucket.spans) {
    std::memcpy(tensors_[span.parameter].parameter + span.parameter_offset_elements,
                from + span.bucket_offset_elements, span.elements * sizeof(float));
  }
}

}  // namespace optshard

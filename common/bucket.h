// Buckets: the units of reduce, update and publish. They follow from layout, plan and options
// alone, so that all ranks make the same buckets in the same order.
#ifndef OPTSHARD_COMMON_BUCKET_H_
#define OPTSHARD_COMMON_BUCKET_H_

#include <cstdint>
#include <vector>

#include "common/dtype.h"
#include "common/ids.h"
#include "common/memory_layout.h"
#include "common/plan.h"

namespace optshard {

// A piece of one parameter inside a bucket.
struct BucketSpan {
  int32_t parameter = 0;
  int64_t parameter_offset_elements = 0;  // first element within the parameter
  int64_t bucket_offset_elements = 0;     // first element within the bucket
  int64_t elements = 0;
};

// All spans of a bucket have the same owner, group, dtypes and device. Each begins at a multiple of
// 64 bytes of the bucket. The gaps between them are padding, whose values mean nothing. Slots use
// the same offsets.
struct Bucket {
  int index = 0;  // position in the order in which all ranks issue operations
  Rank owner = 0;
  int group = 0;
  int region = 0;                          // of the MemoryLayout
  DType dtype = DType::kFloat32;           // of the parameters
  DType gradient_dtype = DType::kFloat32;  // of a rank's gradients
  // True: the bucket is one stretch of its region, which starts at region_offset_elements, and the
  // spans lie in it at their bucket offsets. Where a rank's memory is flat, the bucket is sent from
  // there and received there without a copy. False: the spans are small pieces from several places
  // and are always packed.
  bool contiguous = false;
  int64_t region_offset_elements = 0;  // only where contiguous
  int64_t elements = 0;                // padding included; see bytes()
  std::vector<BucketSpan> spans;

  // On the wire, of parameters that travel as they are, and of gradients.
  int64_t bytes() const { return elements * static_cast<int64_t>(SizeOf(dtype)); }
  int64_t gradient_bytes() const { return elements * static_cast<int64_t>(SizeOf(gradient_dtype)); }
};

struct BucketOptions {
  // A bucket holds at most this many bytes of parameters. Larger parameters are cut at multiples of
  // kCodeGrid elements; where so many do not fit, of the largest power of two of cache lines that
  // does.
  int64_t max_bytes = 4 << 20;
  // A stretch of a region that is shorter than this is packed together with others.
  int64_t pack_below_bytes = 256 << 10;
};

// The owners take turns: first come the first buckets of all owners, then their second ones, and so
// on. A slice without elements is in no bucket. The slices of the plan must begin at multiples of
// 64 bytes of their parameters, as those of MakePartition do. Pieces that are cut from one stretch
// are of nearly equal size, and so are the packed buckets of one region, so that no small remainder
// travels alone. Thread-safe.
std::vector<Bucket> MakeBuckets(const MemoryLayout& layout, const Plan& plan,
                                const BucketOptions& options);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_BUCKET_H_

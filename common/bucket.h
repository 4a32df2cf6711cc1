// Buckets: the units of reduce, update and publish. A pure function of layout and plan, so
// that all ranks cut the same ones, in the same order.
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

// Spans of one owner, one group, one dtype, one device. Bucket offsets of spans are 64-byte
// aligned; the gaps are padding, whose values mean nothing. Slots use the same offsets.
struct Bucket {
  int index = 0;  // its place in the order in which all ranks issue operations
  Rank owner = 0;
  int group = 0;
  int region = 0;  // of the MemoryLayout
  DType dtype = DType::kFloat32;
  // True: the bucket is one stretch of its region, starting at region_offset_elements with exactly
  // the spans' bucket offsets, and is sent from and received into place where a rank's memory is
  // laid out flat. False: small pieces from several places, always packed.
  bool contiguous = false;
  int64_t region_offset_elements = 0;  // where contiguous
  int64_t elements = 0;  // padding included; bytes on the wire = elements * SizeOf(dtype)
  std::vector<BucketSpan> spans;

  int64_t bytes() const { return elements * static_cast<int64_t>(SizeOf(dtype)); }
};

struct BucketOptions {
  // A bucket holds at most this many bytes; larger parameters are cut at multiples of 64 bytes.
  int64_t max_bytes = 4 << 20;
  // A stretch of a region shorter than this is packed together with others.
  int64_t pack_below_bytes = 256 << 10;
};

// Ordered so that the owners take turns (each owner's first bucket, each owner's second, ...).
// Zero-size slices take part in no bucket. Slices of the plan begin at multiples of 64 bytes of
// their parameters, as MakePartition's do. Pieces that are cut from one stretch are of nearly equal
// size, and so are packed buckets of one region: no small rest travels alone.
std::vector<Bucket> MakeBuckets(const MemoryLayout& layout, const Plan& plan,
                                const BucketOptions& options);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_BUCKET_H_

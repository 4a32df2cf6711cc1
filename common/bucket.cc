#include "common/bucket.h"

#include <algorithm>
#include <utility>

#include "common/block_code.h"

namespace optshard {
namespace {

int64_t RegionOffset(const MemoryLayout& layout, const BucketSpan& span) {
  return layout.place(span.parameter).offset_elements + span.parameter_offset_elements;
}

// One owner's pieces of one region, in the region's order.
struct RegionShare {
  int region = 0;
  std::vector<BucketSpan> spans;  // bucket offsets not set
};

std::vector<RegionShare> SharesOf(const std::vector<Slice>& slices, const MemoryLayout& layout) {
  std::vector<RegionShare> shares(layout.regions().size());
  for (size_t i = 0; i < shares.size(); ++i) shares[i].region = static_cast<int>(i);
  for (const Slice& slice : slices) {
    if (slice.elements == 0) continue;
    shares[layout.place(slice.parameter).region].spans.push_back(
        {slice.parameter, slice.offset_elements, 0, slice.elements});
  }
  return shares;
}

// Makes the buckets of one owner.
class OwnerBuckets {
 public:
  OwnerBuckets(const MemoryLayout& layout, const BucketOptions& options, Rank owner)
      : layout_(layout), options_(options), owner_(owner) {}

  // Stretches that are long enough go alone, the rest of the region together after them.
  void AddShare(const RegionShare& share) {
    const MemoryLayout::Region& region = layout_.regions()[share.region];
    std::vector<BucketSpan> small;
    for (size_t begin = 0, end; begin < share.spans.size(); begin = end) {
      end = begin + 1;
      while (end < share.spans.size() &&
             Adjacent(share.spans[end - 1], share.spans[end], region.dtype)) {
        ++end;
      }
      const std::vector<BucketSpan> stretch(share.spans.begin() + begin, share.spans.begin() + end);
      if (Elements(stretch, region.dtype) * static_cast<int64_t>(SizeOf(region.dtype)) <
          options_.pack_below_bytes) {
        small.insert(small.end(), stretch.begin(), stretch.end());
      } else {
        Cut(stretch, share.region);
      }
    }
    if (!small.empty()) Cut(small, share.region);
  }

  std::vector<Bucket> Take() && { return std::move(buckets_); }

 private:
  // Only padding, if anything, lies between them.
  bool Adjacent(const BucketSpan& a, const BucketSpan& b, DType dtype) const {
    return RegionOffset(layout_, a) + AlignedElements(a.elements, dtype) ==
           RegionOffset(layout_, b);
  }

  static int64_t Elements(const std::vector<BucketSpan>& spans, DType dtype) {
    int64_t elements = 0;
    for (const BucketSpan& span : spans) elements += AlignedElements(span.elements, dtype);
    return elements;
  }

  // What parameters are cut at multiples of, in elements: at most `max_elements`.
  static int64_t Grid(int64_t unit, int64_t max_elements) {
    int64_t grid = unit;
    while (2 * grid <= std::min(kCodeGrid, max_elements)) grid *= 2;
    return grid;
  }

  // Into few buckets of at most max_bytes, of nearly the same size.
  void Cut(const std::vector<BucketSpan>& spans, int region) {
    const DType dtype = layout_.regions()[region].dtype;
    const int64_t unit = AlignedElements(1, dtype);
    const int64_t max = std::max<int64_t>(options_.max_bytes / kAlignmentBytes, 1) * unit;
    const int64_t grid = Grid(unit, max);
    const int64_t elements = Elements(spans, dtype);
    const int64_t count = (elements + max - 1) / max;
    const int64_t even = (elements + count - 1) / count;
    const int64_t most = std::min((even + grid - 1) / grid * grid, max);

    Bucket bucket = Empty(region);
    for (const BucketSpan& span : spans) {
      for (int64_t done = 0; done < span.elements;) {
        const int64_t room = most - bucket.elements;
        const int64_t rest = span.elements - done;
        const int64_t piece = rest <= room ? rest : room / grid * grid;
        if (piece == 0) {
          Finish(std::move(bucket));
          bucket = Empty(region);
          continue;
        }
        bucket.spans.push_back(
            {span.parameter, span.parameter_offset_elements + done, bucket.elements, piece});
        bucket.elements += AlignedElements(piece, dtype);
        done += piece;
        if (bucket.elements == most) {
          Finish(std::move(bucket));
          bucket = Empty(region);
        }
      }
    }
    if (!bucket.spans.empty()) Finish(std::move(bucket));
  }

  Bucket Empty(int region) const {
    Bucket bucket;
    bucket.owner = owner_;
    bucket.group = layout_.regions()[region].group;
    bucket.region = region;
    bucket.dtype = layout_.regions()[region].dtype;
    bucket.gradient_dtype = layout_.regions()[region].gradient_dtype;
    return bucket;
  }

  void Finish(Bucket bucket) {
    bucket.contiguous = true;
    for (size_t i = 1; i < bucket.spans.size(); ++i) {
      bucket.contiguous &= Adjacent(bucket.spans[i - 1], bucket.spans[i], bucket.dtype);
    }
    if (bucket.contiguous) bucket.region_offset_elements = RegionOffset(layout_, bucket.spans[0]);
    buckets_.push_back(std::move(bucket));
  }

  const MemoryLayout& layout_;
  const BucketOptions options_;
  const Rank owner_;
  std::vector<Bucket> buckets_;
};

}  // namespace

std::vector<Bucket> MakeBuckets(const MemoryLayout& layout, const Plan& plan,
                                const BucketOptions& options) {
  std::vector<std::vector<Bucket>> of_owner;
  size_t rounds = 0;
  for (size_t owner = 0; owner < plan.partition.slices.size(); ++owner) {
    OwnerBuckets buckets(layout, options, static_cast<Rank>(owner));
    for (const RegionShare& share : SharesOf(plan.partition.slices[owner], layout)) {
      buckets.AddShare(share);
    }
    of_owner.push_back(std::move(buckets).Take());
    rounds = std::max(rounds, of_owner.back().size());
  }

  std::vector<Bucket> ordered;
  for (size_t round = 0; round < rounds; ++round) {
    for (std::vector<Bucket>& buckets : of_owner) {
      if (round >= buckets.size()) continue;
      buckets[round].index = static_cast<int>(ordered.size());
      ordered.push_back(std::move(buckets[round]));
    }
  }
  return ordered;
}

}  // namespace optshard

#include "common/bucket.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "common/block_code.h"
#include "gtest/gtest.h"
#include "tests/testing/random_space.h"

namespace optshard {
namespace {

using Groups = std::vector<GroupSpec>;

constexpr PartitionPolicy kPolicies[] = {PartitionPolicy::kGreedy, PartitionPolicy::kGreedyInOrder,
                                         PartitionPolicy::kBalanced, PartitionPolicy::kReplicated};

Plan PlanOf(const ParameterSpace& space, int world_size, PartitionPolicy policy) {
  return *MakePlan(1, space, policy, std::vector<std::string>(world_size, "node"));
}

// Sorted, with neighbours joined and empty ones left out.
std::vector<Slice> Joined(std::vector<Slice> slices) {
  std::sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return std::tie(a.parameter, a.offset_elements) < std::tie(b.parameter, b.offset_elements);
  });
  std::vector<Slice> joined;
  for (const Slice& slice : slices) {
    if (slice.elements == 0) continue;
    if (!joined.empty() && joined.back().parameter == slice.parameter &&
        joined.back().offset_elements + joined.back().elements == slice.offset_elements) {
      joined.back().elements += slice.elements;
    } else {
      joined.push_back(slice);
    }
  }
  return joined;
}

bool Equal(const Bucket& a, const Bucket& b) {
  const auto key = [](const Bucket& x) {
    return std::tie(x.index, x.owner, x.group, x.region, x.dtype, x.contiguous,
                    x.region_offset_elements, x.elements);
  };
  return key(a) == key(b) &&
         std::equal(a.spans.begin(), a.spans.end(), b.spans.begin(), b.spans.end(),
                    [](const BucketSpan& s, const BucketSpan& t) {
                      return std::tie(s.parameter, s.parameter_offset_elements,
                                      s.bucket_offset_elements, s.elements) ==
                             std::tie(t.parameter, t.parameter_offset_elements,
                                      t.bucket_offset_elements, t.elements);
                    });
}

// Everything that bucket.h promises of one bucket.
void CheckBucket(const ParameterSpace& space, const MemoryLayout& layout, const Bucket& bucket,
                 const BucketOptions& options) {
  const auto size = static_cast<int64_t>(SizeOf(bucket.dtype));
  const MemoryLayout::Region& region = layout.regions()[bucket.region];
  ASSERT_EQ(std::tie(bucket.group, bucket.dtype), std::tie(region.group, region.dtype));
  ASSERT_LE(bucket.bytes(), std::max(options.max_bytes, kAlignmentBytes));
  ASSERT_FALSE(bucket.spans.empty());
  int64_t end = 0;      // in the bucket
  int64_t run = 0;      // bytes of the stretch of the region that the span at hand lies in
  int64_t run_end = 0;  // its end in the region
  for (const BucketSpan& span : bucket.spans) {
    const int64_t in_region =
        layout.place(span.parameter).offset_elements + span.parameter_offset_elements;
    ASSERT_EQ(layout.place(span.parameter).region, bucket.region);
    ASSERT_GT(span.elements, 0);
    ASSERT_GE(span.parameter_offset_elements, 0);
    ASSERT_LE(span.parameter_offset_elements + span.elements,
              space.parameter(span.parameter).elements());
    ASSERT_EQ(span.parameter_offset_elements * size % kAlignmentBytes, 0);
    if (options.max_bytes >= kCodeGrid * size) {
      ASSERT_EQ(span.parameter_offset_elements % kCodeGrid, 0) << "a bucket cuts a block of codes";
    }
    ASSERT_EQ(span.bucket_offset_elements * size % kAlignmentBytes, 0);
    ASSERT_EQ(span.bucket_offset_elements, AlignedElements(end, bucket.dtype));
    end = span.bucket_offset_elements + span.elements;
    if (bucket.contiguous) {
      ASSERT_EQ(in_region, bucket.region_offset_elements + span.bucket_offset_elements);
    } else {
      run = in_region == run_end ? run : 0;
      run_end = in_region + AlignedElements(span.elements, bucket.dtype);
      run += AlignedElements(span.elements, bucket.dtype) * size;
      ASSERT_LT(run, options.pack_below_bytes);
    }
  }
  ASSERT_EQ(bucket.elements, AlignedElements(end, bucket.dtype));
  if (bucket.contiguous) {
    ASSERT_GE(bucket.region_offset_elements, 0);
    ASSERT_LE(bucket.region_offset_elements + bucket.elements, region.elements);
  }
}

TEST(Buckets, RandomSpaces_AllPolicies_KeepEveryPromise) {
  const BucketOptions kOptions[] = {{},
                                    {64 << 10, 8 << 10},
                                    {4096, 0},
                                    {1000, 100000},  // packs all, and cuts what it packed
                                    {1, 64}};        // less than the least there can be
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const ParameterSpace space = RandomSpace(seed);
    const MemoryLayout layout(space);
    for (int world_size : {1, 2, 3, 7}) {
      for (PartitionPolicy policy : kPolicies) {
        const Plan plan = PlanOf(space, world_size, policy);
        for (const BucketOptions& options : kOptions) {
          // The least buckets are many: a few spaces show them as well as all do.
          if (options.max_bytes < 4096 && seed % 12 != 1) continue;
          SCOPED_TRACE("seed " + std::to_string(seed) + " world " + std::to_string(world_size) +
                       " policy " + std::string(NameOf(policy)) + " max_bytes " +
                       std::to_string(options.max_bytes));
          const std::vector<Bucket> buckets = MakeBuckets(layout, plan, options);
          std::vector<std::vector<Slice>> owned(world_size);
          std::vector<int> turns(world_size, 0);
          std::pair<int, Rank> last = {-1, 0};
          for (size_t i = 0; i < buckets.size(); ++i) {
            const Bucket& bucket = buckets[i];
            ASSERT_NO_FATAL_FAILURE(CheckBucket(space, layout, bucket, options)) << "bucket " << i;
            ASSERT_EQ(bucket.index, static_cast<int>(i));
            const std::pair<int, Rank> turn = {turns[bucket.owner]++, bucket.owner};
            ASSERT_LT(last, turn) << "bucket " << i << " is not its owner's turn";
            last = turn;
            for (const BucketSpan& span : bucket.spans) {
              owned[bucket.owner].push_back(
                  {span.parameter, span.parameter_offset_elements, span.elements});
            }
          }
          for (int rank = 0; rank < world_size; ++rank) {
            ASSERT_EQ(Joined(owned[rank]), Joined(plan.partition.slices[rank])) << "rank " << rank;
          }
          const std::vector<Bucket> again = MakeBuckets(MemoryLayout(space), plan, options);
          ASSERT_TRUE(
              std::equal(buckets.begin(), buckets.end(), again.begin(), again.end(), Equal));
        }
      }
    }
  }
}

// Except for their places in the order, in which all owners take turns.
TEST(Buckets, GroupsOrParametersAdded_LeaveLayoutAndBucketsOfWhatWasThere) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const ParameterSpace before = RandomSpace(seed);
    const ParameterSpace after =
        seed % 2 == 0 ? Grown(before, seed + 1) : GrownWithin(before, seed + 1);
    const MemoryLayout old_layout(before);
    const MemoryLayout layout(after);
    ASSERT_EQ(old_layout.Digest(), layout.Digest(0)) << "seed " << seed;
    for (size_t r = 0; r < old_layout.regions().size(); ++r) {
      ASSERT_EQ(old_layout.regions()[r].elements, layout.regions()[r].elements) << "seed " << seed;
      ASSERT_EQ(old_layout.regions()[r].group, layout.regions()[r].group) << "seed " << seed;
    }
    for (int p = 0; p < before.parameter_count(); ++p) {
      ASSERT_EQ(old_layout.place(p).region, layout.place(p).region) << "seed " << seed;
      ASSERT_EQ(old_layout.place(p).offset_elements, layout.place(p).offset_elements);
    }
    for (const PartitionPolicy policy : kPolicies) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " policy " + std::string(NameOf(policy)));
      const BucketOptions options = {8192, 1024};
      std::vector<Bucket> old = MakeBuckets(old_layout, PlanOf(before, 3, policy), options);
      std::vector<Bucket> now = MakeBuckets(layout, PlanOf(after, 3, policy), options);
      now.erase(std::remove_if(now.begin(), now.end(),
                               [&](const Bucket& bucket) {
                                 return bucket.spans[0].parameter >= before.parameter_count();
                               }),
                now.end());
      for (std::vector<Bucket>* buckets : {&old, &now}) {
        std::stable_sort(buckets->begin(), buckets->end(),
                         [](const Bucket& a, const Bucket& b) { return a.owner < b.owner; });
        for (Bucket& bucket : *buckets) bucket.index = 0;
      }
      ASSERT_TRUE(std::equal(old.begin(), old.end(), now.begin(), now.end(), Equal));
    }
  }
}

TEST(Buckets, LargeParameter_IsCutIntoEqualPieces) {
  // 1,000,000 floats: 3.8 MiB. Four pieces of at most 1 MiB, not three and a small rest.
  const ParameterSpace space(Groups{{{{"w", {1000000}}}}});
  const std::vector<Bucket> buckets =
      MakeBuckets(MemoryLayout(space), PlanOf(space, 1, PartitionPolicy::kGreedy), {1 << 20, 0});
  ASSERT_EQ(buckets.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(buckets[i].contiguous);
    EXPECT_EQ(buckets[i].region_offset_elements,
              i * 250112);  // the multiple of 256 from 250,000 on
    EXPECT_EQ(buckets[i].elements, i < 3 ? 250112 : 1000000 - 3 * 250112);
  }
}

TEST(Buckets, NeighboursOfOneOwner_AreOneContiguousBucket) {
  const ParameterSpace space(Groups{{{{"a", {100}}, {"b", {3}}, {"c", {50}}}}});
  const std::vector<Bucket> buckets =
      MakeBuckets(MemoryLayout(space), PlanOf(space, 1, PartitionPolicy::kGreedy), {});
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_TRUE(buckets[0].contiguous);
  EXPECT_EQ(buckets[0].spans.size(), 3u);
  EXPECT_EQ(buckets[0].elements, 112 + 16 + 64);
}

TEST(Buckets, SmallPieces_FromBetweenAnothersLargeOnes_ArePackedTogether) {
  // w0 and both biases go to rank 0; w1 and w2, between them, to rank 1.
  const ParameterSpace space(Groups{{{{"b0", {100}},
                                      {"w1", {2000, 100}},
                                      {"b1", {100}},
                                      {"w2", {1500, 100}},
                                      {"w0", {3000, 100}}}}});
  const std::vector<Bucket> buckets =
      MakeBuckets(MemoryLayout(space), PlanOf(space, 2, PartitionPolicy::kGreedy), {});
  const struct {
    Rank owner;
    bool contiguous;
    std::vector<int> parameters;
  } kExpected[] = {{0, true, {4}}, {1, true, {1}}, {0, false, {0, 2}}, {1, true, {3}}};
  ASSERT_EQ(buckets.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(buckets[i].owner, kExpected[i].owner) << i;
    EXPECT_EQ(buckets[i].contiguous, kExpected[i].contiguous) << i;
    std::vector<int> parameters;
    for (const BucketSpan& span : buckets[i].spans) parameters.push_back(span.parameter);
    EXPECT_EQ(parameters, kExpected[i].parameters) << i;
  }
}

TEST(Buckets, NothingToOwn_GivesNone) {
  const ParameterSpace space(Groups{{{{"z", {0}}}}});
  EXPECT_TRUE(
      MakeBuckets(MemoryLayout(space), PlanOf(space, 3, PartitionPolicy::kBalanced), {}).empty());
}

}  // namespace
}  // namespace optshard

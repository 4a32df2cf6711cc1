#include "server/shard/engine/replica_memory.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/engine/step_input.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;

// 16 elements of parameter 0 and 10 of parameter 1, with 6 of padding behind it.
Bucket PaddedBucket() {
  Bucket bucket;
  bucket.contiguous = true;
  bucket.region_offset_elements = 16;
  bucket.elements = 32;
  bucket.spans = {{0, 4, 0, 16}, {1, 0, 16, 10}};
  return bucket;
}

// The same without padding.
Bucket TightBucket() {
  Bucket bucket = PaddedBucket();
  bucket.elements = 32;
  bucket.spans[1].elements = 16;
  return bucket;
}

class ReplicaMemoryTest : public ::testing::Test {
 protected:
  // Parameter 0 begins at 12 of the region, so that its element 4 stands at 16.
  ReplicaMemoryTest() : region_(64), gradients_(64) {
    for (int i = 0; i < 64; ++i) {
      region_[i] = static_cast<float>(i);
      gradients_[i] = static_cast<float>(100 + i);
    }
    tensors_ = {{&region_[12], &gradients_[12]}, {&region_[32], &gradients_[32]}};
    vouched_ = {{region_.data(), gradients_.data()}};
  }

  std::vector<float> region_;
  std::vector<float> gradients_;
  std::vector<ReplicaTensor> tensors_;
  std::vector<ReplicaRegion> vouched_;
};

TEST_F(ReplicaMemoryTest, PaddedBucketInFlatMemory_IsInPlaceOnlyWhereVouchedFor) {
  const ReplicaMemory vouched(tensors_, vouched_);
  EXPECT_EQ(vouched.ParametersInPlace(PaddedBucket()), &region_[16]);
  EXPECT_EQ(vouched.GradientsInPlace(PaddedBucket()), &gradients_[16]);
  const ReplicaMemory plain(tensors_, {});
  EXPECT_EQ(plain.ParametersInPlace(PaddedBucket()), nullptr);
  EXPECT_EQ(plain.GradientsInPlace(PaddedBucket()), nullptr);
}

TEST_F(ReplicaMemoryTest, TightBucketInFlatMemory_IsInPlaceInAnyCase) {
  EXPECT_EQ(ReplicaMemory(tensors_, {}).ParametersInPlace(TightBucket()), &region_[16]);
}

TEST_F(ReplicaMemoryTest, TensorElsewhere_IsNotInPlace) {
  std::vector<float> elsewhere(16);
  tensors_[1].parameter = elsewhere.data();
  for (const absl::Span<const ReplicaRegion> regions :
       {absl::Span<const ReplicaRegion>(vouched_), absl::Span<const ReplicaRegion>()}) {
    const ReplicaMemory memory(tensors_, regions);
    EXPECT_EQ(memory.ParametersInPlace(TightBucket()), nullptr);
    EXPECT_EQ(memory.GradientsInPlace(TightBucket()), &gradients_[16]);
  }
}

TEST_F(ReplicaMemoryTest, MissingGradient_IsNotInPlaceAndPackedAsZero) {
  tensors_[0].gradient = nullptr;
  const ReplicaMemory memory(tensors_, vouched_);
  EXPECT_EQ(memory.GradientsInPlace(PaddedBucket()), nullptr);
  std::vector<float> packed(32, -1);
  memory.PackGradients(PaddedBucket(), packed.data());
  for (int i = 0; i < 16; ++i) EXPECT_EQ(packed[i], 0);
  for (int i = 16; i < 26; ++i) EXPECT_EQ(packed[i], static_cast<float>(116 + i));
  for (int i = 26; i < 32; ++i) EXPECT_EQ(packed[i], 0);
}

TEST_F(ReplicaMemoryTest, PackedAndUnpacked_TouchesOnlyTheSpans) {
  Bucket bucket;
  bucket.elements = 32;
  bucket.spans = {{1, 2, 0, 3}, {0, 0, 16, 2}};
  const ReplicaMemory memory(tensors_, {});
  std::vector<float> packed(32, -1);
  memory.PackParameters(bucket, packed.data());
  EXPECT_THAT(std::vector<float>(packed.begin(), packed.begin() + 4), ElementsAre(34, 35, 36, 0));
  EXPECT_THAT(std::vector<float>(packed.begin() + 15, packed.begin() + 19),
              ElementsAre(0, 12, 13, 0));
  for (float& value : packed) value = -value;
  memory.UnpackParameters(bucket, packed.data());
  EXPECT_THAT(std::vector<float>(region_.begin() + 11, region_.begin() + 15),
              ElementsAre(11, -12, -13, 14));
  EXPECT_THAT(std::vector<float>(region_.begin() + 33, region_.begin() + 38),
              ElementsAre(33, -34, -35, -36, 37));
}

}  // namespace
}  // namespace optshard

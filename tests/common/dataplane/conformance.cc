#include "tests/common/dataplane/conformance.h"

#include <xmmintrin.h>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/dtype_conversion.h"
#include "gmock/gmock.h"
#include "tests/common/dataplane/conformance_operations.h"
#include "tests/common/dataplane/order_sensitive.h"

namespace optshard {
namespace {

std::vector<char> Pattern(size_t bytes, size_t seed) {
  std::vector<char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 31 + seed * 7 + (i >> 8));
  return data;
}

template <typename T>
void ReduceAndCompare(DataPlane& plane, const ReductionTree& tree, DType dtype, Rank owner,
                      int64_t elements, bool in_place, int32_t bucket) {
  const bool mine = owner == plane.rank();
  std::vector<T> contribution = OrderSensitiveValues<T>(plane.rank(), elements);
  std::vector<T> result(mine && !in_place ? elements : 0);
  T* to = !mine ? nullptr : in_place ? contribution.data() : result.data();
  ASSERT_TRUE(WaitFor(plane.Reduce(Tag(StepPhase::kReduce, bucket), kHost, AverageOver(tree, owner),
                                   dtype, contribution.data(), to, elements))
                  .ok());
  if (!mine) return;
  EXPECT_TRUE(SameBits(in_place ? contribution : result,
                       ExpectedAverage<T>(tree, plane.world_size(), elements)))
      << elements << " elements, owner " << owner;
}

}  // namespace

void DataPlaneConformance::Run(const std::function<void(DataPlane& plane)>& body) const {
  RunGroup(GetParam().kind, world_size(), body);
}

TEST_P(DataPlaneConformance, Plane_Made_KnowsItsPlace) {
  Run([&](DataPlane& plane) {
    EXPECT_EQ(plane.world_size(), world_size());
    EXPECT_GE(plane.rank(), 0);
    EXPECT_LT(plane.rank(), world_size());
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
}

TEST_P(DataPlaneConformance, Reduce_OrderSensitiveValues_AveragesInTreeOrder) {
  for (const ReductionTree& tree : Trees(world_size())) {
    Run([&](DataPlane& plane) {
      int32_t bucket = 0;
      for (int owner = 0; owner < world_size(); ++owner) {
        for (int64_t elements : {0, 1, 7, 1023, 1025, 70003}) {
          for (bool in_place : {false, true}) {
            ReduceAndCompare<float>(plane, tree, DType::kFloat32, owner, elements, in_place,
                                    bucket++);
          }
        }
      }
      EXPECT_TRUE(plane.Close(FarDeadline()).ok());
    });
  }
}

TEST_P(DataPlaneConformance, Reduce_CallersFlushDenormalsAndRoundDown_AveragesInTheDefaultMode) {
  // From here, so that threads which a plane starts inherit it.
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | _MM_FLUSH_ZERO_ON | 0x0040 /* denormals are zero */ | _MM_ROUND_DOWN);
  const int64_t elements = 1025;
  const auto value = [](Rank rank, int64_t i) {
    const uint32_t denormal = 1 + (static_cast<uint32_t>(i) * 7919 + rank * 104729) % 0x3fffff;
    return i % 2 == 0 ? absl::bit_cast<float>(denormal) : 1.0f + static_cast<float>(i + rank) / 3;
  };
  std::vector<std::vector<float>> values(world_size(), std::vector<float>(elements));
  std::vector<float> expected(elements);
  _mm_setcsr(saved);
  for (int64_t i = 0; i < elements; ++i) {
    for (Rank rank = 0; rank < world_size(); ++rank) {
      values[rank][i] = value(rank, i);
      expected[i] += values[rank][i];
    }
    expected[i] /= static_cast<float>(world_size());
  }
  _mm_setcsr(saved | _MM_FLUSH_ZERO_ON | 0x0040 | _MM_ROUND_DOWN);
  Run([&](DataPlane& plane) {
    for (Rank owner = 0; owner < world_size(); ++owner) {
      std::vector<float> result(elements);
      ASSERT_TRUE(WaitFor(plane.Reduce(Tag(StepPhase::kReduce, owner), kHost,
                                       AverageOver(OneGroup(world_size()), owner), DType::kFloat32,
                                       values[plane.rank()].data(),
                                       owner == plane.rank() ? result.data() : nullptr, elements))
                      .ok());
      if (owner == plane.rank()) {
        EXPECT_TRUE(SameBits(result, expected));
      }
    }
    EXPECT_EQ(_mm_getcsr() & 0xe040u, 0xa040u) << "the caller's mode was not put back";
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
  _mm_setcsr(saved);
}

TEST_P(DataPlaneConformance, Reduce_Float64_AveragesInFloat64) {
  for (const ReductionTree& tree : Trees(world_size())) {
    Run([&](DataPlane& plane) {
      for (int owner = 0; owner < world_size(); ++owner) {
        ReduceAndCompare<double>(plane, tree, DType::kFloat64, owner, 5001, false, owner);
      }
      EXPECT_TRUE(plane.Close(FarDeadline()).ok());
    });
  }
}

// The average keeps the bits that 16 do not hold.
TEST_P(DataPlaneConformance, Reduce_HalfTypes_AverageInFloat32) {
  constexpr int64_t kElements = 150001;  // more than one message of the planes that cut them
  for (const ReductionTree& tree : Trees(world_size())) {
    Run([&](DataPlane& plane) {
      int32_t bucket = 0;
      for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
        std::vector<std::vector<uint16_t>> halves;
        std::vector<std::vector<float>> values;
        for (Rank rank = 0; rank < world_size(); ++rank) {
          const std::vector<float> exact = OrderSensitiveValues<float>(rank, kElements);
          halves.emplace_back(kElements);
          values.emplace_back(kElements);
          Narrow(dtype, exact.data(), kElements, halves.back().data());
          Widen(dtype, halves.back().data(), kElements, values.back().data());
        }
        const Rank owner = world_size() - 1;
        std::vector<float> result(plane.rank() == owner ? kElements : 0);
        ASSERT_TRUE(
            WaitFor(plane.Reduce(Tag(StepPhase::kReduce, bucket++), kHost, AverageOver(tree, owner),
                                 dtype, halves[plane.rank()].data(),
                                 result.empty() ? nullptr : result.data(), kElements))
                .ok());
        if (plane.rank() == owner) {
          EXPECT_TRUE(SameBits(result, AverageOf(tree, values)));
        }
      }
      EXPECT_TRUE(plane.Close(FarDeadline()).ok());
    });
  }
}

TEST_P(DataPlaneConformance, Operation_OwnerOutOfRange_IsRefused) {
  Run([&](DataPlane& plane) {
    float value = 1;
    EXPECT_EQ(WaitFor(plane.Reduce(Tag(StepPhase::kReduce), kHost,
                                   AverageOver(OneGroup(world_size()), world_size()),
                                   DType::kFloat32, &value, &value, 1))
                  .code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(
        WaitFor(plane.Publish(Tag(StepPhase::kPublish), kHost, -1, AllRanks(plane), &value, 4))
            .code(),
        absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
}

TEST_P(DataPlaneConformance, Reduce_LessThanNoElements_IsRefused) {
  Run([&](DataPlane& plane) {
    float value = 1;
    EXPECT_EQ(
        WaitFor(plane.Reduce(Tag(StepPhase::kReduce), kHost, AverageOver(OneGroup(world_size()), 0),
                             DType::kFloat32, &value, &value, -1))
            .code(),
        absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
}

TEST_P(DataPlaneConformance, Publish_FromEveryOwner_GivesAllItsBytes) {
  Run([&](DataPlane& plane) {
    int32_t bucket = 0;
    for (int owner = 0; owner < world_size(); ++owner) {
      for (size_t bytes : {size_t{0}, size_t{1}, size_t{4099}, size_t{3} << 20}) {
        const std::vector<char> expected = Pattern(bytes, owner);
        std::vector<char> data = owner == plane.rank() ? expected : std::vector<char>(bytes);
        ASSERT_TRUE(WaitFor(plane.Publish(Tag(StepPhase::kPublish, bucket++), kHost, owner,
                                          AllRanks(plane), data.data(), bytes))
                        .ok());
        EXPECT_TRUE(data == expected) << bytes << " bytes of owner " << owner;
      }
    }
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
}

TEST_P(DataPlaneConformance, AllGather_DifferentContributions_ComeInRankOrder) {
  Run([&](DataPlane& plane) {
    int32_t number = 0;
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{33}, size_t{1} << 20}) {
      std::vector<char> expected;
      for (int rank = 0; rank < world_size(); ++rank) {
        const std::vector<char> part = Pattern(bytes, rank);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      const std::vector<char> mine = Pattern(bytes, plane.rank());
      std::vector<char> gathered(bytes * world_size());
      ASSERT_TRUE(WaitFor(plane.AllGather(Tag(StepPhase::kCommit, number++), kHost, mine.data(),
                                          gathered.data(), bytes))
                      .ok());
      EXPECT_TRUE(gathered == expected) << bytes << " bytes a rank";
    }
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
}

TEST_P(DataPlaneConformance, AllGather_MoreThanSmall_IsRefused) {
  Run([&](DataPlane& plane) {
    std::vector<char> mine((1 << 20) + 1);
    std::vector<char> gathered(mine.size() * world_size());
    EXPECT_EQ(WaitFor(plane.AllGather(Tag(StepPhase::kCommit), kHost, mine.data(), gathered.data(),
                                      mine.size()))
                  .code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
}

// A step as the engine makes it: all reductions under way at once, a commit, then each owner's
// average published while later ones are still going on. Ranks that own nothing of a bucket wait
// for their part in it last, and in reverse order.
TEST_P(DataPlaneConformance, Steps_ManyBucketsUnderWay_AreExact) {
  constexpr int kBuckets = 18;
  constexpr int64_t kElements = 5003;
  const ReductionTree tree = Trees(world_size()).back();
  Run([&](DataPlane& plane) {
    for (int step = 1; step <= 3; ++step) {
      std::vector<std::vector<float>> gradients, parameters;
      std::vector<std::unique_ptr<Ticket>> reduces, publishes;
      for (int bucket = 0; bucket < kBuckets; ++bucket) {
        gradients.push_back(
            OrderSensitiveValues<float>(plane.rank(), kElements, step * 100 + bucket));
        parameters.emplace_back(kElements);
      }
      for (int bucket = 0; bucket < kBuckets; ++bucket) {
        auto ticket = plane.Reduce(Tag(StepPhase::kReduce, bucket, step), kHost,
                                   AverageOver(tree, bucket % world_size()), DType::kFloat32,
                                   gradients[bucket].data(), parameters[bucket].data(), kElements);
        ASSERT_TRUE(ticket.ok()) << ticket.status();
        reduces.push_back(*std::move(ticket));
      }
      for (int bucket = plane.rank(); bucket < kBuckets; bucket += world_size()) {
        ASSERT_TRUE(reduces[bucket]->Wait(FarDeadline()).ok());
        reduces[bucket].reset();
      }
      char vote = 1;
      std::vector<char> votes(world_size());
      ASSERT_TRUE(
          WaitFor(plane.AllGather(Tag(StepPhase::kCommit, 0, step), kHost, &vote, votes.data(), 1))
              .ok());
      for (int bucket = 0; bucket < kBuckets; ++bucket) {
        auto ticket =
            plane.Publish(Tag(StepPhase::kPublish, bucket, step), kHost, bucket % world_size(),
                          AllRanks(plane), parameters[bucket].data(), kElements * sizeof(float));
        ASSERT_TRUE(ticket.ok()) << ticket.status();
        publishes.push_back(*std::move(ticket));
      }
      for (auto* tickets : {&publishes, &reduces}) {
        for (int bucket = kBuckets - 1; bucket >= 0; --bucket) {
          if ((*tickets)[bucket] == nullptr) continue;
          ASSERT_TRUE((*tickets)[bucket]->Wait(FarDeadline()).ok());
        }
      }
      for (int bucket = 0; bucket < kBuckets; ++bucket) {
        EXPECT_TRUE(
            SameBits(parameters[bucket],
                     ExpectedAverage<float>(tree, world_size(), kElements, step * 100 + bucket)))
            << "step " << step << ", bucket " << bucket;
      }
    }
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
}

TEST_P(DataPlaneConformance, Wait_BeforeTheOthersCome_Blocks) {
  absl::Notification first_has_started;
  Run([&](DataPlane& plane) {
    const std::vector<char> expected = Pattern(100000, 5);
    const Rank owner = world_size() - 1;
    std::vector<char> data = plane.rank() == owner ? expected : std::vector<char>(100000);
    if (plane.rank() != 0) first_has_started.WaitForNotification();
    auto ticket = plane.Publish(Tag(StepPhase::kPublish), kHost, owner, AllRanks(plane),
                                data.data(), data.size());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    if (plane.rank() == 0) first_has_started.Notify();
    ASSERT_TRUE((*ticket)->Wait(FarDeadline()).ok());
    EXPECT_TRUE(data == expected);
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
}

TEST_P(DataPlaneConformance, OrderOn_WithoutAStream_SaysToWait) {
  Run([&](DataPlane& plane) {
    std::vector<char> data(64);
    auto ticket = plane.Publish(Tag(StepPhase::kPublish), kHost, 0, AllRanks(plane), data.data(),
                                data.size());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_EQ((*ticket)->OrderOn(kHost).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE((*ticket)->Wait(FarDeadline()).ok());
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
  });
}

TEST_P(DataPlaneConformance, Close_OperationAfterIt_IsRefused) {
  Run([&](DataPlane& plane) {
    EXPECT_TRUE(Barrier(plane, 0).ok());
    EXPECT_TRUE(plane.Close(FarDeadline()).ok());
    EXPECT_EQ(Barrier(plane, 1).code(), absl::StatusCode::kFailedPrecondition);
  });
}

}  // namespace optshard

// Ranks of a test of the NCCL plane over fakes, each on a thread and with a stream of its own.
#ifndef OPTSHARD_TESTS_COMMON_DATAPLANE_NCCL_RANKS_H_
#define OPTSHARD_TESTS_COMMON_DATAPLANE_NCCL_RANKS_H_

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "gmock/gmock.h"
#include "tests/common/dataplane/conformance_operations.h"
#include "tests/common/dataplane/nccl_group.h"
#include "tests/common/dataplane/order_sensitive.h"

namespace optshard {

// One rank of a test: its plane, and a stream of its device as a trainer has one.
struct OnDevice {
  OnDevice(NcclGroup& group_of, const NcclPlaneOptions& options, DataPlane& its_plane)
      : group(group_of), plane(its_plane), device(*options.device), stream(*device->NewStream()) {}

  ExecutionContext context() const { return {device->name(), stream.get()}; }
  std::vector<Rank> all() const { return AllRanks(plane); }

  absl::StatusOr<std::unique_ptr<Ticket>> Publish(int32_t bucket, Rank owner, void* data,
                                                  size_t bytes) const {
    return plane.Publish(Tag(StepPhase::kPublish, bucket), context(), owner, all(), data, bytes);
  }
  absl::StatusOr<std::unique_ptr<Ticket>> Reduce(int32_t bucket, Rank owner, float* values,
                                                 int64_t elements) const {
    return plane.Reduce(Tag(StepPhase::kReduce, bucket), context(),
                        AverageOver(OneGroup(plane.world_size()), owner), DType::kFloat32, values,
                        plane.rank() == owner ? values : nullptr, elements);
  }

  NcclGroup& group;
  DataPlane& plane;
  const std::shared_ptr<DeviceApi> device;
  const std::shared_ptr<void> stream;
};

using Change = std::function<void(NcclPlaneOptions& options)>;
using Body = std::function<void(const OnDevice& rank)>;

inline void RunRanks(NcclGroup& group, int world_size, const Change& change, const Body& body) {
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      NcclPlaneOptions options = group.OptionsOf(rank);
      change(options);
      absl::StatusOr<std::unique_ptr<DataPlane>> plane = group.Make(options);
      ASSERT_TRUE(plane.ok()) << "rank " << rank << ": " << plane.status();
      body(OnDevice(group, options, **plane));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(group.nccl().Misuses(), ::testing::IsEmpty());
}

inline void RunRanks(NcclGroup& group, int world_size, const Body& body) {
  RunRanks(
      group, world_size, [](NcclPlaneOptions&) {}, body);
}

template <typename Condition>
bool Eventually(const Condition& condition) {
  const absl::Time deadline = Clock::Monotonic().Now() + absl::Seconds(30);
  while (!condition()) {
    if (Clock::Monotonic().Now() >= deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace optshard

#endif  // OPTSHARD_TESTS_COMMON_DATAPLANE_NCCL_RANKS_H_

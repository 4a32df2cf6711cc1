// A group of planes of one kind, one thread a rank: what the conformance suite is run with.
#ifndef OPTSHARD_TESTS_COMMON_DATAPLANE_PLANE_GROUP_H_
#define OPTSHARD_TESTS_COMMON_DATAPLANE_PLANE_GROUP_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/dataplane/data_plane.h"
#include "gtest/gtest.h"

namespace optshard {

// Makes the planes of one group. Make is called once a rank, on that rank's thread.
class PlaneMaker {
 public:
  virtual ~PlaneMaker() = default;
  virtual absl::StatusOr<std::unique_ptr<DataPlane>> Make(Rank rank) = 0;
};

struct PlaneKind {
  std::string name;
  std::function<std::unique_ptr<PlaneMaker>(int world_size)> maker;
};

// Where the threads of a group wait for each other beside their planes. Thread-safe; for one use.
class Meeting {
 public:
  explicit Meeting(int members) : missing_(members) {}

  void Attend() {
    absl::MutexLock lock(&mutex_);
    --missing_;
    const auto complete = [this] {
      mutex_.AssertReaderHeld();
      return missing_ == 0;
    };
    mutex_.Await(absl::Condition(&complete));
  }

 private:
  absl::Mutex mutex_;
  int missing_ ABSL_GUARDED_BY(mutex_);
};

// Far more than any operation takes: a test that gets there fails.
inline absl::Time FarDeadline() { return Clock::Monotonic().Now() + absl::Seconds(60); }

// Runs `body` on every rank of a new group, each on a thread of its own with its plane.
inline void RunGroup(const PlaneKind& kind, int world_size,
                     const std::function<void(DataPlane& plane)>& body) {
  const std::unique_ptr<PlaneMaker> maker = kind.maker(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&maker, &body, rank] {
      absl::StatusOr<std::unique_ptr<DataPlane>> plane = maker->Make(rank);
      ASSERT_TRUE(plane.ok()) << "rank " << rank << ": " << plane.status();
      body(**plane);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace optshard

#endif  // OPTSHARD_TESTS_COMMON_DATAPLANE_PLANE_GROUP_H_

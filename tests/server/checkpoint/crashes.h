// What crashes leave of what was not synced, for tests that crash at every operation.
#ifndef OPTSHARD_TESTS_SERVER_CHECKPOINT_CRASHES_H_
#define OPTSHARD_TESTS_SERVER_CHECKPOINT_CRASHES_H_

#include <cstdint>
#include <vector>

#include "tests/testing/fake_file_system.h"
#include "tests/testing/number_from_environment.h"

namespace optshard::testing {

struct Crash {
  FakeFileSystem::Unsynced unsynced;
  uint64_t seed;
};

// All of it, nothing, and what chance leaves, with a few seeds.
// --test_env=OPTSHARD_CRASH_SEEDS=100 makes it a campaign.
inline std::vector<Crash> Crashes() {
  const uint64_t seeds = NumberFromEnvironment("OPTSHARD_CRASH_SEEDS", 2);
  std::vector<Crash> crashes;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    crashes.push_back({FakeFileSystem::Unsynced::kByChance, seed});
  }
  crashes.push_back({FakeFileSystem::Unsynced::kLost, seeds});
  crashes.push_back({FakeFileSystem::Unsynced::kKept, seeds + 1});
  return crashes;
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_CHECKPOINT_CRASHES_H_

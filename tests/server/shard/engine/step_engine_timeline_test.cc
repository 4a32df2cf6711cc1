// What a step notes in the timeline.

#include <map>
#include <string>

#include "gtest/gtest.h"
#include "server/shard/engine/step_engine.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

TEST(StepEngine_Timeline, HasEveryBucketAndPhase) {
  EngineRig::Options options;
  EngineRig rig(options);
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  std::map<std::string, int> seen;
  for (const TimelineSpan& span : rig.rank(0).timeline->Read()) {
    EXPECT_EQ(span.step, 1);
    EXPECT_GE(span.duration_us, 0);
    ++seen[span.phase];
  }
  const int buckets = static_cast<int>(rig.buckets().size());
  const int own = static_cast<int>(rig.rank(0).store->own_buckets().size());
  EXPECT_EQ(seen, (std::map<std::string, int>{{"reduce", buckets},
                                              {"update", own},
                                              {"publish", buckets},
                                              {"prepare", 1},
                                              {"commit", 1},
                                              {"apply", 1}}));
}

}  // namespace
}  // namespace optshard::testing

// Whether trainers of more than one rank can run in this configuration.
#ifndef OPTSHARD_TESTS_TESTING_TRAINERS_RUN_H_
#define OPTSHARD_TESTS_TESTING_TRAINERS_RUN_H_

#include "common/dataplane/gloo/gloo_loader.h"

namespace optshard::testing {

// For GTEST_SKIP.
constexpr char kTrainersCannotRun[] =
    "the sanitizer refuses what keeps LibTorch's Gloo and ours apart in one process";

inline bool TrainersRun() { return GlooIsIsolated(); }

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_TRAINERS_RUN_H_

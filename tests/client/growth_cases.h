// How jobs run that get param groups or parameters while they train: under which policy, on which
// plane, and where parameters lie. And their parameters, and the gradients of each step.
#ifndef OPTSHARD_TESTS_CLIENT_GROWTH_CASES_H_
#define OPTSHARD_TESTS_CLIENT_GROWTH_CASES_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "client/sharded_optimizer_options.h"
#include "common/dataplane/host_plane.h"
#include "tests/client/attached_options.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard::testing {

inline std::vector<at::Tensor> Parameters(const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; i < shapes.size(); ++i) {
    parameters.push_back(Parameter(shapes[i], static_cast<float>(i + 1) / 4));
  }
  return parameters;
}

// Numbers that float32 holds exactly, of every rank the same.
inline void GiveGradients(const std::vector<at::Tensor>& parameters, int step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() =
        at::full(parameters[i].sizes(), ((5 * step + 3 * static_cast<int>(i)) % 11 - 5) / 8.0,
                 at::TensorOptions(parameters[i].scalar_type()));
  }
}

enum class GrowthPlane { kOnePass, kShmMessages, kGloo, kFake, kServer };

struct GrowthCase {
  const char* name;
  int world_size;
  PartitionPolicy policy;
  GrowthPlane plane = GrowthPlane::kOnePass;
  BucketView view = BucketView::kAutomatic;
  bool one_copy = false;
};

inline std::vector<GrowthCase> GrowthCases() {
  using Plane = GrowthPlane;
  return {
      {"OneRank", 1, PartitionPolicy::kGreedy},
      {"OneRankInPlace", 1, PartitionPolicy::kGreedy, Plane::kOnePass, BucketView::kOff},
      {"OnePass", 3, PartitionPolicy::kGreedy},
      {"OnePassCut", 2, PartitionPolicy::kBalanced},
      {"OneCopy", 2, PartitionPolicy::kBalanced, Plane::kOnePass, BucketView::kOn, true},
      {"ShmMessages", 2, PartitionPolicy::kBalanced, Plane::kShmMessages, BucketView::kOff},
      {"Gloo", 3, PartitionPolicy::kBalanced, Plane::kGloo},
      {"GlooGreedy", 2, PartitionPolicy::kGreedyInOrder, Plane::kGloo},
      {"Server", 2, PartitionPolicy::kBalanced, Plane::kServer},
      {"ServerOneCopy", 3, PartitionPolicy::kGreedy, Plane::kServer, BucketView::kAutomatic, true},
      {"Messages", 3, PartitionPolicy::kGreedy, Plane::kFake},
      {"Unsharded", 2, PartitionPolicy::kReplicated, Plane::kFake},
  };
}

// Runs each rank's part of a job that has `generations` in the end.
inline void RunGrowthCase(const GrowthCase& row, int generations,
                          const std::function<void(ShardedOptimizerOptions)>& body) {
  const auto with_options = [&](ShardedOptimizerOptions options) {
    options.policy = row.policy;
    options.parameters_as_bucket_view = row.view;
    options.share_parameters = row.one_copy;
    options.buckets = {4096, 1024};
    body(options);
  };
  if (row.plane == GrowthPlane::kServer) {
    ExpectAllOk(RunAttached(row.world_size, with_options));
    return;
  }
  if (row.plane == GrowthPlane::kFake) {
    ExpectAllOk(RunRanks(row.world_size, with_options, FakeHub::Mode::kDelayed));
    return;
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  if (row.plane == GrowthPlane::kGloo) {
    GTEST_SKIP() << "no sanitizer loads Gloo beside LibTorch";
  }
#endif
  const HostRun run = RunRanksOfOneHost(
      row.world_size, with_options,
      row.plane == GrowthPlane::kGloo ? HostPlaneKind::kGloo : HostPlaneKind::kAuto);
  ExpectAllOk(run.thrown);
  const bool one_pass = row.plane == GrowthPlane::kOnePass && row.world_size > 1;
  EXPECT_EQ(run.one_pass_ranks, one_pass ? generations * row.world_size : 0);
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_CLIENT_GROWTH_CASES_H_

// A program in another repository, which has optshard as a Bazel repository.
#include <cstdio>

#include "client/sharded_optimizer_options.h"
#include "proto/optshard/v1/common.pb.h"

int main() {
  const auto options = optshard::ShardedOptimizerOptions::FromEnvironment();
  if (!options.ok()) {
    std::printf("%s\n", options.status().ToString().c_str());
    return 1;
  }
  std::printf("rank %d of %d, %s\n", options->rank, options->world_size,
              optshard::v1::ParameterSpace::descriptor()->full_name().c_str());
}

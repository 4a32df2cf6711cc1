// ShardedOptimizer with parameters on a GPU: the bits of the same job on CPUs. Ranks are processes
// that share the GPU, which NCCL takes for those of several hosts (nccl_plane_device_test.cc). The
// process of the tests itself has no threads and never uses the GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer_options.h"
#include "tests/client/device_jobs.h"
#include "tests/common/dataplane/ranks_on_one_gpu.h"
#include "tests/testing/free_port.h"
#include "tests/testing/in_child.h"

namespace optshard::testing {
namespace {

using Body = std::function<std::string(const ShardedOptimizerOptions& options, c10::Device device)>;

// As a program that links it has it.
void LoadTorchForCuda() {
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw std::runtime_error(absl::StrCat("no LibTorch for CUDA: ", dlerror()));
  }
}

class OptimizerOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / "optshard_gpu_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Place(c10::DeviceType type) const {
    return absl::StrCat(folder_, "/", c10::DeviceTypeName(type, /*lower_case=*/true));
  }

  // What each rank's body ended with, on CPUs and on the GPU, with the state there and on the host.
  void ExpectAlike(int world_size, const Body& body) const {
    const std::vector<std::string> on_hosts = Run(world_size, c10::kCPU, "", body);
    for (const std::string state_device : {"", "cpu"}) {
      SCOPED_TRACE(absl::StrCat("state_device \"", state_device, "\""));
      const std::vector<std::string> on_gpu = Run(world_size, {c10::kCUDA, 0}, state_device, body);
      for (int rank = 0; rank < world_size; ++rank) {
        EXPECT_FALSE(on_hosts[rank].empty());
        EXPECT_TRUE(on_hosts[rank] == on_gpu[rank]) << "rank " << rank;
      }
    }
  }

 private:
  std::vector<std::string> Run(int world_size, c10::Device device, const std::string& state_device,
                               const Body& body) const {
    const std::string coordinator = absl::StrCat("127.0.0.1:", FreePort());
    const auto result_of = [&](Rank rank) { return absl::StrCat(Place(device.type()), rank); };
    std::vector<std::unique_ptr<Child>> ranks;
    for (Rank rank = 0; rank < world_size; ++rank) {
      ShardedOptimizerOptions options;
      options.rank = rank;
      options.world_size = world_size;
      options.embedded_coordinator = coordinator;
      options.state_device = state_device;
      ranks.push_back(std::make_unique<Child>(
          [&, options] { return RunRank(options, device, body, result_of(options.rank)); }));
    }
    std::vector<std::string> results;
    for (Rank rank = 0; rank < world_size; ++rank) {
      EXPECT_EQ(ranks[rank]->Wait(), 0) << "rank " << rank << " on " << device;
      std::ifstream file(result_of(rank), std::ios::binary);
      results.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return results;
  }

  static int RunRank(const ShardedOptimizerOptions& options, c10::Device device, const Body& body,
                     const std::string& result) {
    try {
      if (device.is_cuda()) {
        TakeForHostOfItsOwn(options.rank);
        LoadTorchForCuda();
      }
      std::ofstream(result, std::ios::binary) << body(options, device);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", options.rank, error.what());
      return 1;
    }
    return ::testing::Test::HasFailure() ? 1 : 0;
  }

  std::string folder_;
};

class OptimizerOnGpuInEachWay : public OptimizerOnGpu,
                                public ::testing::WithParamInterface<DeviceWay> {};

TEST_P(OptimizerOnGpuInEachWay, Steps_HaveTheBitsOfTheCpu) {
  ExpectAlike(GetParam().world_size,
              [](const ShardedOptimizerOptions& options, c10::Device device) {
                return TakeSteps(GetParam(), options, device);
              });
}

INSTANTIATE_TEST_SUITE_P(Ways, OptimizerOnGpuInEachWay, ::testing::ValuesIn(DeviceWays()),
                         [](const auto& test) { return test.param.name; });

TEST_F(OptimizerOnGpu, StateIsSetAndLoadedAndValuesRefreshed) { ExpectAlike(2, ChangeState); }

TEST_F(OptimizerOnGpu, Checkpoint_IsSavedWhileStepsGoOnAndLoaded) {
  ExpectAlike(2, [this](const ShardedOptimizerOptions& options, c10::Device device) {
    return SaveAndLoad(
        absl::StrCat(Place(device.type()), "_", options.state_device, "_checkpoints"), options,
        device);
  });
}

TEST_F(OptimizerOnGpu, AddedParameters_AreSteppedToo) { ExpectAlike(2, AddParameters); }

}  // namespace
}  // namespace optshard::testing

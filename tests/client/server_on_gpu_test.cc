// ShardedOptimizer with parameters on a GPU, attached to a shard server, some of whose processes
// are killed: the bits of the same job on CPUs. The process of the tests itself has no threads and
// never uses the GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer_options.h"
#include "server/device/owner_device.h"
#include "tests/client/attached_options.h"
#include "tests/client/device_jobs.h"
#include "tests/server/node/kept_server.h"
#include "tests/testing/in_child.h"

namespace optshard::testing {
namespace {

class ServerOnGpu : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / "optshard_gpu_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // What `body` returns, in a process of its own; empty where it fails, or is killed.
  std::string Run(const std::function<std::string()>& body) const {
    Run([&](const std::function<void(const std::string&)>& write) { write(body()); });
    return Written();
  }
  // What `body` has written when it ended.
  std::string RunUntilItsEnd(
      const std::function<void(const std::function<void(const std::string&)>& write)>& body) const {
    Run(body);
    return Written();
  }

  ShardedOptimizerOptions OnServer() const {
    ShardedOptimizerOptions options = AttachedTo(server_.address(), 0, 1);
    options.state_device = GetParam();
    return options;
  }
  static c10::Device Gpu() { return {c10::kCUDA, 0}; }

  // Of processes of its own, too.
  KeptServer server_{[](int, auto*) {}, 1,
                     [](NodeOwners::Options* options) { options->find_device = FindOwnerDevice; }};

 private:
  void Run(
      const std::function<void(const std::function<void(const std::string&)>& write)>& body) const {
    std::filesystem::remove(Result());
    Child child([&] {
      // As a program that links it has it.
      if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
        std::fprintf(stderr, "no LibTorch for CUDA: %s\n", dlerror());
        return 1;
      }
      try {
        body([this](const std::string& result) {
          std::ofstream(Result(), std::ios::binary) << result;
        });
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
      }
      return 0;
    });
    const int code = child.Wait();
    EXPECT_TRUE(code == 0 || code == -SIGKILL) << code;
  }
  std::string Result() const { return absl::StrCat(folder_, "/result"); }
  std::string Written() const {
    std::ifstream file(Result(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  std::string folder_;
};

INSTANTIATE_TEST_SUITE_P(StateDevices, ServerOnGpu, ::testing::Values("", "cpu"),
                         [](const auto& test) { return test.param.empty() ? "Gpu" : "Cpu"; });

std::string TakeAdamSteps(const ShardedOptimizerOptions& options, c10::Device device, int count) {
  DeviceTrainer trainer(options, device);
  trainer.Make(RuleOptions("adam"));
  for (int step = 0; step < count; ++step) trainer.Step();
  return trainer.Everything();
}

TEST_P(ServerOnGpu, Steps_HaveTheBitsOfTheCpu) {
  const auto steps = [](const ShardedOptimizerOptions& options, c10::Device device) {
    return TakeAdamSteps(options, device, 4);
  };
  const std::string on_host = Run([&] {
    ShardedOptimizerOptions options;
    options.world_size = 1;
    options.rank = 0;
    return steps(options, c10::kCPU);
  });
  EXPECT_FALSE(on_host.empty());
  EXPECT_TRUE(Run([&] { return steps(OnServer(), Gpu()); }) == on_host);
}

TEST_P(ServerOnGpu, TrainerThatIsKilled_IsReplaced) {
  const std::string before = RunUntilItsEnd([&](const auto& write) {
    DeviceTrainer trainer(OnServer(), Gpu());
    trainer.Make(RuleOptions("adam"));
    for (int step = 0; step < 3; ++step) trainer.Step();
    write(trainer.Everything());
    raise(SIGKILL);
  });
  EXPECT_FALSE(before.empty());
  EXPECT_TRUE(Run([&] { return TakeAdamSteps(OnServer(), Gpu(), 0); }) == before);
}

TEST_P(ServerOnGpu, ServerThatIsKilled_IsReplacedWithItsMemory) {
  const std::string before = Run([&] { return TakeAdamSteps(OnServer(), Gpu(), 3); });
  EXPECT_FALSE(before.empty());
  server_.Kill();
  server_.Return();
  EXPECT_TRUE(Run([&] { return TakeAdamSteps(OnServer(), Gpu(), 0); }) == before);
}

}  // namespace
}  // namespace optshard::testing

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

  using Write = std::function<void(const std::string& result)>;

  // Of a process of its own. What it writes there is Written() once it has ended.
  std::unique_ptr<Child> Begin(const std::function<void(const Write& write)>& body) const {
    std::filesystem::remove(Result());
    return std::make_unique<Child>([&] {
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
  }
  std::string Written() const {
    std::ifstream file(Result(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  // What `body` returns there.
  std::string Run(const std::function<std::string()>& body) const {
    EXPECT_EQ(Begin([&](const Write& write) { write(body()); })->Wait(), 0);
    return Written();
  }

  static ShardedOptimizerOptions OnHost() {
    ShardedOptimizerOptions options;
    options.world_size = 1;
    options.rank = 0;
    return options;
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
  std::string Result() const { return absl::StrCat(folder_, "/result"); }

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
  const std::string on_host = Run([&] { return steps(OnHost(), c10::kCPU); });
  EXPECT_FALSE(on_host.empty());
  EXPECT_TRUE(Run([&] { return steps(OnServer(), Gpu()); }) == on_host);
}

TEST_P(ServerOnGpu, TrainerThatIsKilled_IsReplaced) {
  const std::unique_ptr<Child> first = Begin([&](const Write& write) {
    DeviceTrainer trainer(OnServer(), Gpu());
    trainer.Make(RuleOptions("adam"));
    for (int step = 0; step < 3; ++step) trainer.Step();
    write(trainer.Everything());
    raise(SIGKILL);
  });
  EXPECT_EQ(first->Wait(), -SIGKILL);
  const std::string before = Written();
  EXPECT_FALSE(before.empty());
  EXPECT_TRUE(Run([&] { return TakeAdamSteps(OnServer(), Gpu(), 0); }) == before);
}

TEST_P(ServerOnGpu, ServerThatIsKilled_IsReplacedUnderItsTrainer) {
  const auto steps = [](const ShardedOptimizerOptions& options, c10::Device device,
                        const std::function<void()>& between) {
    DeviceTrainer trainer(options, device);
    trainer.Make(RuleOptions("adam"));
    for (int step = 0; step < 3; ++step) trainer.Step();
    between();
    for (int step = 0; step < 3; ++step) trainer.Step();
    return trainer.Everything();
  };
  const std::string on_host = Run([&] { return steps(OnHost(), c10::kCPU, [] {}); });
  EXPECT_FALSE(on_host.empty());
  const std::shared_ptr<Board> board = Board::Make();
  const std::unique_ptr<Child> trainer = Begin([&](const Write& write) {
    write(steps(OnServer(), Gpu(), [&] {
      board->ready = 1;
      Board::Await(board->stage, 1);
    }));
  });
  EXPECT_TRUE(Board::Await(board->ready, 1));
  server_.Kill();
  server_.Return();
  board->stage = 1;
  EXPECT_EQ(trainer->Wait(), 0);
  EXPECT_TRUE(Written() == on_host);
}

}  // namespace
}  // namespace optshard::testing

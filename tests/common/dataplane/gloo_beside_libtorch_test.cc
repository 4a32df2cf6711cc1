// LibTorch exports a Gloo of its own. Both live in one process, each bound to its own: tensors and
// the Gloo plane at work together, with LibTorch's Gloo symbols in the global scope.
#include <dlfcn.h>
#include <torch/torch.h>

#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/dataplane/gloo/gloo_loader.h"
#include "common/dataplane/gloo/gloo_plane.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_rendezvous.h"

namespace optshard {
namespace {

// gloo::Context::getDevice(), which both libraries define.
constexpr char kGlooSymbol[] = "_ZN4gloo7Context9getDeviceEv";

std::string FileOf(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 ? info.dli_fname : "";
}

absl::Time Deadline() { return Clock::Monotonic().Now() + absl::Seconds(30); }

TEST(GlooBesideLibtorch, CannotBeIsolated_IsRefused) {
  if (GlooIsIsolated()) GTEST_SKIP() << "only sanitizers refuse RTLD_DEEPBIND";
  EXPECT_EQ(MakeGlooWire({}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(GlooBesideLibtorch, TensorsPublishedAndReduced_BothLibrariesWork) {
  if (!GlooIsIsolated()) GTEST_SKIP() << "this sanitizer refuses RTLD_DEEPBIND";
  testing::FakeRendezvous rendezvous;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([rank, &rendezvous] {
      GlooPlaneOptions options;
      options.rank = rank;
      options.world_size = 2;
      options.rendezvous = &rendezvous;
      options.deadline = Deadline();
      auto plane = CreateGlooPlane(options);
      ASSERT_TRUE(plane.ok()) << plane.status();
      const Reduction to_first = AverageOver({{{0, 1}}}, 0);
      torch::Tensor weight = torch::full({512, 512}, rank + 1.0f, torch::requires_grad());
      for (StepNumber step = 1; step <= 20; ++step) {
        weight.mutable_grad() = torch::Tensor();
        torch::matmul(weight, weight).sum().backward();
        const torch::Tensor& gradient = weight.grad();
        auto reduce =
            (*plane)->Reduce({1, step, 0, StepPhase::kReduce}, {}, to_first, DType::kFloat32,
                             gradient.data_ptr(), gradient.data_ptr(), gradient.numel());
        ASSERT_TRUE(reduce.ok()) << reduce.status();
        ASSERT_TRUE((*reduce)->Wait(Deadline()).ok());
        torch::NoGradGuard no_grad;
        if (rank == 0) weight.sub_(gradient, 1e-6);
        auto publish = (*plane)->Publish({1, step, 0, StepPhase::kPublish}, {}, 0, {0, 1},
                                         weight.data_ptr(), weight.nbytes());
        ASSERT_TRUE(publish.ok()) << publish.status();
        ASSERT_TRUE((*publish)->Wait(Deadline()).ok());
      }
      double sum = weight.sum().item<double>();
      double sums[2];
      auto gather = (*plane)->AllGather({1, 21, 0, StepPhase::kControl}, {}, &sum, sums, 8);
      ASSERT_TRUE(gather.ok()) << gather.status();
      ASSERT_TRUE((*gather)->Wait(Deadline()).ok());
      EXPECT_EQ(sums[0], sums[1]);
      EXPECT_LT(sum, 512.0 * 512.0);
      EXPECT_TRUE((*plane)->Close(Deadline()).ok());
    });
  }
  for (std::thread& rank : ranks) rank.join();

  // The premise: whoever asks the global scope for Gloo gets LibTorch's ...
  const void* const global = dlsym(RTLD_DEFAULT, kGlooSymbol);
  ASSERT_NE(global, nullptr) << "this LibTorch exports no Gloo: the test shows nothing";
  EXPECT_NE(FileOf(global).find("libtorch_cpu"), std::string::npos) << FileOf(global);
  // ... while Debian's is loaded as well, with symbols of its own.
  void* const debian = dlopen("libgloo.so.0", RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
  ASSERT_NE(debian, nullptr) << "the plane was not loaded";
  EXPECT_NE(dlsym(debian, kGlooSymbol), global);
  dlclose(debian);
}

}  // namespace
}  // namespace optshard

// LibTorch's wheel builds and links beside Abseil and GoogleTest.

#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace optshard::toolchain {
namespace {

TEST(Toolchain_LibTorch, BackwardOfSum_GivesOnes) {
  torch::Tensor x = torch::zeros({4}, torch::requires_grad());
  x.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::ones({4}))) << absl::StrCat("size ", x.numel());
}

}  // namespace
}  // namespace optshard::toolchain

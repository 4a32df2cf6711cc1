#include "client/replica/gradient_placement.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <vector>

namespace optshard {
namespace {

using ::testing::ElementsAre;
using torch::autograd::PostAccumulateGradHook;
using torch::autograd::Variable;
using torch::autograd::impl::post_acc_grad_hooks;
using torch::autograd::impl::set_post_acc_grad_hooks;

at::Tensor Parameter(float value) { return at::full({2}, value).set_requires_grad(true); }
at::Tensor Place() { return at::zeros({2}); }

float First(const at::Tensor& tensor) { return tensor.const_data_ptr<float>()[0]; }

// Notes the gradients that it sees.
class Note : public PostAccumulateGradHook {
 public:
  explicit Note(std::vector<float>& seen) : seen_(seen) {}
  void operator()(const Variable& parameter) override { seen_.push_back(First(parameter.grad())); }

 private:
  std::vector<float>& seen_;
};

TEST(GradientPlacementTest, Backward_HookSetBefore_StillRunsAndOutlivesThePlacement) {
  std::vector<float> seen;
  const at::Tensor a = Parameter(1);
  const at::Tensor place = Place();
  set_post_acc_grad_hooks(a, std::make_unique<Note>(seen));
  {
    const GradientPlacement placement(a, place);
    a.mul(3).sum().backward();
    EXPECT_TRUE(a.grad().is_same(place));
    EXPECT_THAT(seen, ElementsAre(3));
  }
  a.mutable_grad().reset();
  a.mul(5).sum().backward();
  EXPECT_FALSE(a.grad().is_same(place));
  EXPECT_THAT(seen, ElementsAre(3, 5));
}

TEST(GradientPlacementTest, Backward_HookThatReplacesIt_RunsAndStaysBeyondThePlacement) {
  std::vector<float> seen;
  const at::Tensor a = Parameter(1);
  const at::Tensor place = Place();
  {
    const GradientPlacement placement(a, place);
    set_post_acc_grad_hooks(a, std::make_unique<Note>(seen));
    a.mul(3).sum().backward();
    EXPECT_FALSE(a.grad().is_same(place));
  }
  a.mutable_grad().reset();
  a.mul(5).sum().backward();
  EXPECT_THAT(seen, ElementsAre(3, 5));
}

TEST(GradientPlacementTest, Backward_TensorHooksSetBeforeAndAfter_ChangeTheGradientThatIsPlaced) {
  const at::Tensor a = Parameter(1);
  const at::Tensor place = Place();
  a.register_hook([](const at::Tensor& gradient) { return gradient.mul(10); });
  const GradientPlacement placement(a, place);
  const unsigned added =
      a.register_hook([](const at::Tensor& gradient) { return gradient.add(1); });
  a.mul(3).sum().backward();
  EXPECT_TRUE(a.grad().is_same(place));
  EXPECT_EQ(First(place), 31);
  a.remove_hook(added);
  a.mutable_grad().reset();
  a.mul(3).sum().backward();
  EXPECT_EQ(First(place), 30);
}

TEST(GradientPlacementTest, Destroy_NoOtherHook_LeavesNone) {
  const at::Tensor a = Parameter(1);
  { const GradientPlacement placement(a, Place()); }
  EXPECT_EQ(post_acc_grad_hooks(a), nullptr);
}

TEST(GradientPlacementTest, Construct_TensorThatNeverRequiredAGradient_PlacesItOnceItDoes) {
  const at::Tensor a = at::full({2}, 1.0f);
  const at::Tensor place = Place();
  const GradientPlacement placement(a, place);
  a.set_requires_grad(true);
  a.mul(3).sum().backward();
  EXPECT_TRUE(a.grad().is_same(place));
  EXPECT_EQ(First(place), 3);
}

// The gradient of the first backward is used in a graph; the second one overwrites its memory.
TEST(GradientPlacementTest, Backward_GradientSavedForAnotherBackward_MakesThatOneAnError) {
  const at::Tensor a = Parameter(1);
  const at::Tensor weight = Parameter(1);
  const at::Tensor place = Place();
  const GradientPlacement placement(a, place);
  a.mul(3).sum().backward();
  const at::Tensor stale = weight.mul(a.grad()).sum();
  a.mutable_grad().reset();
  a.mul(5).sum().backward();
  EXPECT_EQ(First(place), 5);
  EXPECT_THROW(stale.backward(), c10::Error);
}

}  // namespace
}  // namespace optshard

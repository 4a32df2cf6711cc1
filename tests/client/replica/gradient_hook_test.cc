#include "client/replica/gradient_hook.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class GradientHookTest : public ::testing::Test {
 protected:
  std::unique_ptr<GradientHook> Hook(const std::string& name) {
    return std::make_unique<GradientHook>(
        parameter_, [this, name](const at::Tensor&) { called_.push_back(name); });
  }
  // Whom a backward calls, in this order.
  std::vector<std::string> Called() {
    called_.clear();
    parameter_.sum().backward();
    return called_;
  }

  const at::Tensor parameter_ = at::ones({2}).requires_grad_();
  std::vector<std::string> called_;
};

TEST_F(GradientHookTest, Several_AreCalledInTheirOrderAndEndInAny) {
  std::unique_ptr<GradientHook> first = Hook("first");
  const std::unique_ptr<GradientHook> second = Hook("second");
  std::unique_ptr<GradientHook> third = Hook("third");
  EXPECT_THAT(Called(), ElementsAre("first", "second", "third"));
  first.reset();
  EXPECT_THAT(Called(), ElementsAre("second", "third"));
  third.reset();
  EXPECT_THAT(Called(), ElementsAre("second"));
}

// As of an optimizer that is assigned to the variable that holds the one before.
TEST_F(GradientHookTest, SuccessorIsMadeBeforeItsPredecessorEnds_ItIsCalled) {
  std::unique_ptr<GradientHook> hook = Hook("predecessor");
  hook = Hook("successor");
  EXPECT_THAT(Called(), ElementsAre("successor"));
  hook.reset();
  EXPECT_THAT(Called(), IsEmpty());
}

}  // namespace
}  // namespace optshard

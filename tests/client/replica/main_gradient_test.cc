#include "client/replica/main_gradient.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace optshard {
namespace {

at::Tensor Parameter() { return at::full({2, 1500}, 1, at::kBFloat16).set_requires_grad(true); }
at::Tensor Place() { return at::full({2, 1500}, 77.0f); }

float First(const at::Tensor& tensor) { return tensor.const_data_ptr<float>()[0]; }
float Last(const at::Tensor& tensor) { return tensor.const_data_ptr<float>()[tensor.numel() - 1]; }

TEST(MainGradientTest, Backward_SeveralTimes_AddsUpInFloat32AndFreesEachGradient) {
  const at::Tensor parameter = Parameter();
  MainGradient gradient(parameter, Place());
  EXPECT_FALSE(gradient.present());
  for (const double each : {1.0, 0x1p-10, 0x1p-10}) {
    parameter.mul(each).sum().backward();
    EXPECT_FALSE(parameter.grad().defined());
  }
  EXPECT_TRUE(gradient.present());
  EXPECT_EQ(First(gradient.place()), 1 + 0x1p-9f);
  EXPECT_EQ(Last(gradient.place()), 1 + 0x1p-9f);
  EXPECT_FALSE(gradient.TakeIn());
}

// Autograd gives a gradient the strides of its parameter, and would add the next one to it in 16
// bits.
TEST(MainGradientTest, Backward_OfATransposedParameter_AddsUpInFloat32Too) {
  const at::Tensor parameter =
      at::full({1500, 2}, 1, at::kBFloat16).t().detach().set_requires_grad(true);
  MainGradient gradient(parameter, Place());
  for (const double each : {1.0, 0x1p-10, 0x1p-10}) {
    parameter.mul(each).sum().backward();
    EXPECT_FALSE(parameter.grad().defined());
  }
  EXPECT_EQ(First(gradient.place()), 1 + 0x1p-9f);
  EXPECT_EQ(Last(gradient.place()), 1 + 0x1p-9f);
}

TEST(MainGradientTest, Construct_OverAGradientThatIsThere_TakesItIn) {
  const at::Tensor parameter = Parameter();
  parameter.mul(3).sum().backward();
  const MainGradient gradient(parameter, Place());
  EXPECT_FALSE(parameter.grad().defined());
  EXPECT_EQ(Last(gradient.place()), 3);
}

TEST(MainGradientTest, TakeIn_GradientsThatTheTrainerHasSet_AddsThem) {
  const at::Tensor parameter = Parameter();
  MainGradient gradient(parameter, Place());
  parameter.sum().backward();
  parameter.mutable_grad() = at::full({1500, 2}, 2, at::kBFloat16).t();
  EXPECT_TRUE(gradient.TakeIn());
  EXPECT_FALSE(parameter.grad().defined());
  EXPECT_EQ(Last(gradient.place()), 3);
}

TEST(MainGradientTest, Backward_WithAGraphOfItsOwn_StaysUntilItIsTakenIn) {
  const at::Tensor parameter = Parameter();
  MainGradient gradient(parameter, Place());
  parameter.mul(parameter).sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  EXPECT_TRUE(parameter.grad().defined());
  EXPECT_FALSE(gradient.present());
  EXPECT_TRUE(gradient.TakeIn());
  EXPECT_EQ(First(gradient.place()), 2);
}

TEST(MainGradientTest, Zero_ToNone_OverwritesWithTheNextOne) {
  const at::Tensor parameter = Parameter();
  MainGradient gradient(parameter, Place());
  parameter.sum().backward();
  gradient.Zero(/*set_to_none=*/true);
  EXPECT_FALSE(gradient.present());
  parameter.mul(5).sum().backward();
  EXPECT_EQ(First(gradient.place()), 5);
}

TEST(MainGradientTest, Zero_InPlace_LeavesOneOfZerosWhereThereWasOne) {
  const at::Tensor parameter = Parameter();
  MainGradient gradient(parameter, Place());
  gradient.Zero(/*set_to_none=*/false);
  EXPECT_FALSE(gradient.present());
  parameter.sum().backward();
  gradient.Zero(/*set_to_none=*/false);
  EXPECT_TRUE(gradient.present());
  EXPECT_EQ(Last(gradient.place()), 0);
}

TEST(MainGradientTest, Zero_InPlace_OfAGradientThatIsNotTakenInYet_LeavesOneOfZeros) {
  const at::Tensor parameter = Parameter();
  MainGradient gradient(parameter, Place());
  parameter.mutable_grad() = at::full({1500, 2}, 2, at::kBFloat16).t();
  gradient.Zero(/*set_to_none=*/false);
  EXPECT_TRUE(gradient.present());
  EXPECT_EQ(Last(gradient.place()), 0);
}

TEST(MainGradientTest, Backward_OfSparseEmbedding_AddsUpInFloat32) {
  const at::Tensor parameter = Parameter();
  MainGradient gradient(parameter, Place());
  for (int i = 0; i < 2; ++i) {
    at::embedding(parameter, at::full({1}, 1, at::kLong), /*padding_idx=*/-1,
                  /*scale_grad_by_freq=*/false, /*sparse=*/true)
        .sum()
        .backward();
    EXPECT_FALSE(parameter.grad().defined());
  }
  EXPECT_EQ(First(gradient.place()), 0);
  EXPECT_EQ(Last(gradient.place()), 2);
}

TEST(MainGradientTest, HandOut_Once_MakesItStayThrough) {
  const at::Tensor parameter = Parameter();
  MainGradient gradient(parameter, Place());
  const at::Tensor place = gradient.HandOut();
  EXPECT_TRUE(gradient.present());
  EXPECT_EQ(Last(place), 0);
  place.add_(4);
  parameter.sum().backward();
  EXPECT_EQ(Last(place), 5);
  EXPECT_EQ(Last(gradient.HandOut()), 5);
  gradient.Zero(/*set_to_none=*/true);
  EXPECT_TRUE(gradient.present());
  EXPECT_EQ(Last(place), 0);
}

TEST(MainGradientTest, Destroy_GradientsOfLaterBackwards_StayAutograds) {
  const at::Tensor parameter = Parameter();
  const at::Tensor place = Place();
  { const MainGradient gradient(parameter, place); }
  parameter.sum().backward();
  EXPECT_TRUE(parameter.grad().defined());
  EXPECT_EQ(First(place), 77);
}

}  // namespace
}  // namespace optshard

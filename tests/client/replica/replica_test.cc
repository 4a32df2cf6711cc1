#include "client/replica/replica.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "client/status_error.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor Parameter(const std::vector<int64_t>& shape, float value) {
  return at::full(shape, value, at::TensorOptions().dtype(at::kFloat)).set_requires_grad(true);
}

ParameterList ListOf(const std::vector<at::Tensor>& tensors) {
  return ValueOrThrow(MakeParameterList({tensors}, {}));
}

std::unique_ptr<Replica> MakeFlat(const ParameterList& list) {
  return Replica::MakeFlat(list, ValueOrThrow(FlatMemory::Private(list)));
}

// What both ways have in common.
class ReplicaTest : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Replica> Make(const std::vector<at::Tensor>& tensors) {
    return GetParam() ? MakeFlat(ListOf(tensors)) : Replica::MakeInPlace(ListOf(tensors));
  }
};

std::vector<float> Values(ConstBuffer array, int64_t count) {
  return {array.As<float>(), array.As<float>() + count};
}

TEST_P(ReplicaTest, Gather_ValuesAndGradient_AreShown) {
  const at::Tensor a = Parameter({2}, 3);
  const at::Tensor b = Parameter({3}, 4);
  const auto replica = Make({a, b});
  b.sum().mul(5).backward();
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_THAT(Values(replica->tensors()[0].parameter, 2), ElementsAre(3, 3));
  EXPECT_EQ(replica->tensors()[0].gradient, nullptr);
  EXPECT_THAT(Values(replica->tensors()[1].parameter, 3), ElementsAre(4, 4, 4));
  EXPECT_THAT(Values(replica->tensors()[1].gradient, 3), ElementsAre(5, 5, 5));
  EXPECT_EQ(replica->gradients_copied(), 0);
}

TEST_P(ReplicaTest, Gather_SecondBackward_Accumulates) {
  const at::Tensor a = Parameter({2}, 1);
  const auto replica = Make({a});
  a.sum().mul(5).backward();
  a.sum().mul(2).backward();
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_THAT(Values(replica->tensors()[0].gradient, 2), ElementsAre(7, 7));
}

TEST_P(ReplicaTest, Gather_AfterZeroToNone_HasNoGradient) {
  const at::Tensor a = Parameter({2}, 1);
  const auto replica = Make({a});
  a.sum().backward();
  replica->ZeroGradients(/*set_to_none=*/true);
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_EQ(replica->tensors()[0].gradient, nullptr);
}

TEST_P(ReplicaTest, Gather_AfterZeroInPlace_HasZeroGradientWhereThereWasOne) {
  const at::Tensor a = Parameter({2}, 1);
  const at::Tensor b = Parameter({2}, 1);
  const auto replica = Make({a, b});
  a.sum().backward();
  replica->ZeroGradients(/*set_to_none=*/false);
  ASSERT_TRUE(replica->Gather().ok());
  ASSERT_NE(replica->tensors()[0].gradient, nullptr);
  EXPECT_THAT(Values(replica->tensors()[0].gradient, 2), ElementsAre(0, 0));
  EXPECT_EQ(replica->tensors()[1].gradient, nullptr);
}

TEST_P(ReplicaTest, Gather_FrozenAndUnfrozen_FollowsRequiresGrad) {
  const at::Tensor a = Parameter({2}, 1);
  const auto replica = Make({a});
  a.sum().backward();
  a.set_requires_grad(false);
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_EQ(replica->tensors()[0].gradient, nullptr);
  a.set_requires_grad(true);
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_THAT(Values(replica->tensors()[0].gradient, 2), ElementsAre(1, 1));
}

TEST_P(ReplicaTest, Gather_FrozenAtFirst_HasItsFirstGradient) {
  const at::Tensor a = Parameter({2}, 1).set_requires_grad(false);
  const auto replica = Make({a});
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_EQ(replica->tensors()[0].gradient, nullptr);
  a.set_requires_grad(true);
  a.sum().backward();
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_THAT(Values(replica->tensors()[0].gradient, 2), ElementsAre(1, 1));
}

TEST_P(ReplicaTest, Gather_GradientFromBeforeTheOptimizer_IsKept) {
  const at::Tensor a = Parameter({2}, 1);
  a.sum().backward();
  const auto replica = Make({a});
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_THAT(Values(replica->tensors()[0].gradient, 2), ElementsAre(1, 1));
}

TEST_P(ReplicaTest, Gather_ZeroSizeParameter_HasGradientButNoMemory) {
  const at::Tensor a = Parameter({0, 3}, 1);
  const auto replica = Make({a, Parameter({1}, 1)});
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_EQ(replica->tensors()[0].parameter, nullptr);
  EXPECT_EQ(replica->tensors()[0].gradient, nullptr);
  a.sum().backward();
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_NE(replica->tensors()[0].gradient, nullptr);
}

TEST_P(ReplicaTest, Gather_SparseGradient_NamesTheParameter) {
  const at::Tensor a = Parameter({2, 2}, 1);
  const auto replica = Make({a});
  a.mutable_grad() = at::ones({2, 2}).to_sparse();
  const absl::Status status = replica->Gather();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("parameter_0"));
}

TEST_P(ReplicaTest, Gather_ParameterOfAnotherTypeNow_NamesIt) {
  const at::Tensor a = Parameter({2}, 1);
  const auto replica = Make({a});
  a.mutable_grad().reset();
  a.set_data(at::ones({2}, at::TensorOptions().dtype(at::kDouble)));
  const absl::Status status = replica->Gather();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("parameter_0"));
}

TEST_P(ReplicaTest, Scatter_NewValues_ReachTheTrainerAlsoWhereNotContiguous) {
  const at::Tensor a = at::zeros({2, 3}).t().set_requires_grad(true);
  ASSERT_FALSE(a.is_contiguous());
  const auto replica = Make({a});
  a.select(0, 1).sum().backward();
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_THAT(Values(replica->tensors()[0].gradient, 6), ElementsAre(0, 0, 1, 1, 0, 0));
  for (int i = 0; i < 6; ++i) {
    replica->tensors()[0].parameter.As<float>()[i] = static_cast<float>(i);
  }
  replica->Scatter();
  const at::Tensor values = a.detach().contiguous();
  EXPECT_THAT(Values(values.const_data_ptr<float>(), 6), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_P(ReplicaTest, Scatter_ValuesSavedForBackward_MakeTheBackwardAnError) {
  const at::Tensor a = Parameter({2}, 3);
  const auto replica = Make({a});
  const at::Tensor stale = a.mul(a).sum();
  ASSERT_TRUE(replica->Gather().ok());
  replica->Scatter();
  EXPECT_THROW(stale.backward(), c10::Error);
}

TEST_P(ReplicaTest, Gather_ValuesReplacedByTheTrainer_AreTaken) {
  const at::Tensor a = Parameter({2}, 3);
  const auto replica = Make({a});
  a.set_data(at::full({2}, 9.0f));
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_THAT(Values(replica->tensors()[0].parameter, 2), ElementsAre(9, 9));
  replica->tensors()[0].parameter.As<float>()[0] = 1;
  replica->Scatter();
  EXPECT_EQ(a[0].item<float>(), 1);
}

INSTANTIATE_TEST_SUITE_P(BothWays, ReplicaTest, ::testing::Bool(), [](const auto& test) {
  return test.param ? std::string("Flat") : std::string("InPlace");
});

TEST(FlatReplicaTest, Make_Parameters_BecomeViewsOfOneMemoryWithTheirValues) {
  const at::Tensor a = Parameter({3}, 3);
  const at::Tensor b = Parameter({2, 2}, 4);
  const auto replica = MakeFlat(ListOf({a, b}));
  a.sum().backward();
  ASSERT_TRUE(replica->Gather().ok());
  ASSERT_EQ(replica->regions().size(), 1u);
  float* const flat = replica->regions()[0].parameters.As<float>();
  EXPECT_EQ(a.data_ptr(), flat);
  EXPECT_EQ(b.data_ptr(), flat + 16);  // 64-byte aligned
  EXPECT_EQ(a.grad().data_ptr(), replica->regions()[0].gradients.data());
  EXPECT_EQ(b[1][1].item<float>(), 4);
  EXPECT_EQ(replica->tensors()[1].parameter, flat + 16);
}

TEST(FlatReplicaTest, Backward_AfterZeroToNone_WritesTheGradientIntoItsPlace) {
  const at::Tensor a = Parameter({2}, 1);
  const auto replica = MakeFlat(ListOf({a, Parameter({2}, 1)}));
  const float* const place = replica->regions()[0].gradients.As<float>();
  for (const float factor : {3.0f, 5.0f}) {
    a.mutable_grad().reset();  // as the module's zero_grad()
    a.sum().mul(factor).backward();
    EXPECT_EQ(a.grad().data_ptr(), place);
    ASSERT_TRUE(replica->Gather().ok());
    EXPECT_EQ(replica->gradients_copied(), 0);
    EXPECT_EQ(replica->tensors()[0].gradient, place);
    EXPECT_THAT(Values(place, 2), ElementsAre(factor, factor));
    EXPECT_EQ(replica->tensors()[1].gradient, nullptr);
    replica->Scatter();
  }
}

TEST(FlatReplicaTest, Gather_GradientSetByTheTrainer_IsCopiedAndCountedOnce) {
  const at::Tensor a = Parameter({2}, 1);
  const auto replica = MakeFlat(ListOf({a}));
  a.mutable_grad() = at::ones({2});
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_EQ(replica->gradients_copied(), 1);
  EXPECT_EQ(replica->tensors()[0].gradient, replica->regions()[0].gradients);
  EXPECT_THAT(Values(replica->tensors()[0].gradient, 2), ElementsAre(1, 1));
  replica->Scatter();
  EXPECT_EQ(a.grad().data_ptr(), replica->regions()[0].gradients.data());
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_EQ(replica->gradients_copied(), 0);
}

TEST(FlatReplicaTest, Backward_LargeParameter_HasTheGradientOfATensorOfItsOwn) {
  const at::Tensor a = at::ones({300, 400}).set_requires_grad(true);
  const at::Tensor input = at::arange(400, at::kFloat).div(7);
  a.mv(input).square().sum().backward();
  const at::Tensor expected = a.grad().clone();
  a.mutable_grad().reset();
  const auto replica = MakeFlat(ListOf({a}));
  a.mv(input).square().sum().backward();
  EXPECT_EQ(a.grad().data_ptr(), replica->regions()[0].gradients.data());
  EXPECT_TRUE(a.grad().equal(expected));
  a.mv(input).square().sum().backward();
  EXPECT_TRUE(a.grad().equal(expected.mul(2)));
}

TEST(FlatReplicaTest, Backward_WithAGraphOfItsOwn_IsLeftAlone) {
  const at::Tensor a = Parameter({2}, 3);
  const auto replica = MakeFlat(ListOf({a}));
  a.pow(3).sum().backward(/*gradient=*/{}, /*retain_graph=*/true, /*create_graph=*/true);
  ASSERT_TRUE(a.grad().requires_grad());
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_THAT(Values(replica->tensors()[0].gradient, 2), ElementsAre(27, 27));
}

TEST(FlatReplicaTest, Destroy_TensorsGoOn_WithTheirValues) {
  const at::Tensor a = Parameter({2}, 3);
  MakeFlat(ListOf({a})).reset();
  a.sum().backward();
  EXPECT_EQ(a.sum().item<float>(), 6);
  EXPECT_EQ(a.grad().sum().item<float>(), 2);
}

TEST(InPlaceReplicaTest, Gather_Tensors_StayWhereTheyAre) {
  const at::Tensor a = Parameter({2}, 3);
  const void* const before = a.data_ptr();
  const auto replica = Replica::MakeInPlace(ListOf({a}));
  a.sum().backward();
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_TRUE(replica->regions().empty());
  EXPECT_EQ(a.data_ptr(), before);
  EXPECT_EQ(replica->tensors()[0].parameter.data(), before);
  EXPECT_EQ(replica->tensors()[0].gradient.data(), a.grad().data_ptr());
}

TEST(InPlaceReplicaTest, Gather_GradientNotContiguous_IsCopiedAndCounted) {
  const at::Tensor a = Parameter({2, 2}, 1);
  const auto replica = Replica::MakeInPlace(ListOf({a}));
  a.mutable_grad() = at::ones({2, 2}).t().select(0, 0).expand({2, 2});
  ASSERT_TRUE(replica->Gather().ok());
  EXPECT_EQ(replica->gradients_copied(), 1);
  EXPECT_THAT(Values(replica->tensors()[0].gradient, 4), ElementsAre(1, 1, 1, 1));
}

}  // namespace
}  // namespace optshard

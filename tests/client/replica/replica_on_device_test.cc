// Replicas of parameters on a device.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/replica/replica.h"
#include "client/status_error.h"
#include "tests/testing/fake_torch_device.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FakeTorchDevice;
using ::testing::HasSubstr;

at::TensorOptions On(int device) {
  return at::TensorOptions(at::kFloat).device(FakeTorchDevice::At(device));
}

at::Tensor Parameter(const std::vector<int64_t>& shape, float value, int device = 1) {
  return at::full(shape, value, On(device)).set_requires_grad(true);
}

// Their memory is the host's.
std::vector<float> Values(ConstBuffer array, int64_t count) {
  return {array.As<float>(), array.As<float>() + count};
}
std::vector<float> Values(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().cpu().contiguous();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

class ReplicaOnDeviceTest : public ::testing::TestWithParam<bool> {
 protected:
  bool is_flat() const { return GetParam(); }
  std::unique_ptr<Replica> Make(const ParameterList& list) {
    if (!is_flat()) return Replica::MakeInPlace(list);
    EXPECT_EQ(WhatFlatMemoryBreaks(list), "");
    return Replica::MakeFlat(list, ValueOrThrow(FlatMemory::Private(list)));
  }
  std::unique_ptr<Replica> Make(const std::vector<at::Tensor>& tensors) {
    return Make(ValueOrThrow(MakeParameterList({tensors}, {})));
  }

  const FakeTorchDevice device_{testing::FakeDevices(), {nullptr, nullptr}};
};

TEST_P(ReplicaOnDeviceTest, ValuesAndGradients_LieWhereTheTensorsAre) {
  const at::Tensor a = Parameter({2}, 3);
  const at::Tensor b = Parameter({3}, 4);
  const auto replica = Make({a, b});
  EXPECT_EQ(a.device(), FakeTorchDevice::At(1));
  b.mul(5).sum().backward();
  ASSERT_EQ(replica->Gather(), absl::OkStatus());
  EXPECT_EQ(replica->tensors()[0].parameter.data(), a.const_data_ptr());
  EXPECT_THAT(Values(replica->tensors()[0].parameter, 2), ElementsAre(3, 3));
  EXPECT_EQ(replica->tensors()[0].gradient, nullptr);
  EXPECT_EQ(replica->tensors()[1].gradient.data(), b.grad().const_data_ptr());
  EXPECT_THAT(Values(replica->tensors()[1].gradient, 3), ElementsAre(5, 5, 5));
  EXPECT_EQ(replica->gradients_copied(), 0);
  EXPECT_EQ(replica->regions().empty(), !is_flat());
  b.mul(2).sum().backward();
  ASSERT_EQ(replica->Gather(), absl::OkStatus());
  EXPECT_THAT(Values(replica->tensors()[1].gradient, 3), ElementsAre(7, 7, 7));
  replica->ZeroGradients(/*set_to_none=*/false);
  EXPECT_THAT(Values(b.grad()), ElementsAre(0, 0, 0));
}

TEST_P(ReplicaOnDeviceTest, ValuesThatTheTrainerPutElsewhere_AreGatheredAndScattered) {
  const at::Tensor a = Parameter({2}, 3);
  const auto replica = Make({a});
  a.set_data(at::full({4}, 6.0, On(1)).slice(0, 0, 4, 2));  // not contiguous
  ASSERT_EQ(replica->Gather(), absl::OkStatus());
  EXPECT_THAT(Values(replica->tensors()[0].parameter, 2), ElementsAre(6, 6));
  const_cast<float*>(replica->tensors()[0].parameter.As<float>())[1] = 7;
  replica->Scatter();
  EXPECT_THAT(Values(a), ElementsAre(6, 7));
}

TEST_P(ReplicaOnDeviceTest, MainGradients_AddUpInFloat32) {
  const at::Tensor a = at::full({2}, 1.0, On(1).dtype(at::kBFloat16)).set_requires_grad(true);
  ParameterList list = ValueOrThrow(MakeParameterList({{a}}, {}));
  ASSERT_EQ(UseMainGradients(list), absl::OkStatus());
  const auto replica = Make(list);
  a.mul(256).sum().backward();
  a.sum().backward();
  ASSERT_EQ(replica->Gather(), absl::OkStatus());
  EXPECT_FALSE(a.grad().defined());
  EXPECT_THAT(Values(replica->tensors()[0].gradient, 2), ElementsAre(257, 257));
}

TEST_P(ReplicaOnDeviceTest, GradientThatCannotBeUsed_IsNamed) {
  const at::Tensor a = Parameter({2, 2}, 3);
  const auto replica = Make({a});
  a.mutable_grad() = at::zeros({2, 2}, On(1)).cpu().to_sparse(1);
  EXPECT_THAT(std::string(replica->Gather().message()),
              AllOf(HasSubstr("parameter_0"), HasSubstr("fake:1"), HasSubstr("cpu")));
}

TEST_P(ReplicaOnDeviceTest, ParameterThatHasMoved_IsNamed) {
  const at::Tensor a = Parameter({2}, 3);
  const auto replica = Make({a});
  a.set_data(at::zeros({2}, On(0)));
  EXPECT_THAT(std::string(replica->Gather().message()),
              AllOf(HasSubstr("fake:0"), HasSubstr("fake:1")));
}

INSTANTIATE_TEST_SUITE_P(Memory, ReplicaOnDeviceTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Flat" : "InPlace"; });

TEST(ParameterListOnDevices, AreOnOne) {
  const FakeTorchDevice device(testing::FakeDevices(), {nullptr, nullptr});
  const auto list = MakeParameterList({{Parameter({2}, 1, 1)}}, {});
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->device, FakeTorchDevice::At(1));
  EXPECT_EQ(list->space.parameter(0).device, "fake");
  const absl::Status mixed =
      MakeParameterList({{Parameter({2}, 1, 1), Parameter({2}, 1, 0)}}, {"a", "b"}).status();
  EXPECT_THAT(std::string(mixed.message()),
              AllOf(HasSubstr("\"b\""), HasSubstr("fake:0"), HasSubstr("fake:1")));
}

}  // namespace
}  // namespace optshard

#include "client/replica/parameter_versions.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "client/replica/flat_memory.h"
#include "client/replica/replica_list.h"
#include "client/status_error.h"

namespace optshard {
namespace {

at::Tensor Parameter(float value) {
  return at::full({2, 3}, value, at::TensorOptions().dtype(at::kFloat)).set_requires_grad(true);
}

class ParameterVersionsTest : public ::testing::TestWithParam<bool> {
 protected:
  ParameterVersionsTest() { Add(); }

  // As the optimizer does before each call.
  void Gather() { EXPECT_TRUE(replicas_.GatherValues().ok()); }

  void Add() {
    parameters_ = {Parameter(1), Parameter(2)};
    const ParameterList list = ValueOrThrow(MakeParameterList({parameters_}, {}));
    replicas_.Add(list, GetParam()
                            ? Replica::MakeFlat(list, ValueOrThrow(FlatMemory::Private(list)))
                            : Replica::MakeInPlace(list));
    Gather();
    replicas_.versions().ExpectNone();
  }

  uint64_t count() { return replicas_.versions().count(); }

  std::vector<at::Tensor> parameters_;
  ReplicaList replicas_;
};

TEST_P(ParameterVersionsTest, WhatTheOptimizerDoes_IsNotTheTrainers) {
  const uint64_t before = count();
  parameters_[0].sum().mul(parameters_[1].sum()).backward();
  EXPECT_TRUE(replicas_.Gather().ok());
  replicas_.Scatter();
  replicas_.ZeroGradients(true);
  EXPECT_EQ(count(), before);
  EXPECT_FALSE(replicas_.versions().are_expected());
  EXPECT_NE(replicas_.parameter_memory()->writes, nullptr);
}

TEST_P(ParameterVersionsTest, WritesInPlace_AreTheTrainers_UntilAllHaveTheSameValues) {
  const uint64_t before = count();
  {
    const at::NoGradGuard no_grad;
    parameters_[1].add_(1);
  }
  EXPECT_GT(count(), before);
  EXPECT_TRUE(replicas_.versions().are_expected());
  const uint64_t written = count();
  Gather();
  replicas_.Scatter();
  EXPECT_EQ(count(), written);
  EXPECT_TRUE(replicas_.versions().are_expected());
  replicas_.versions().ExpectNone();
  EXPECT_FALSE(replicas_.versions().are_expected());
  EXPECT_EQ(count(), written);
}

TEST_P(ParameterVersionsTest, ValuesPutElsewhere_CountWhenTheyAreMovedToTheirPlace) {
  const uint64_t before = count();
  parameters_[0].set_data(at::full({2, 3}, 5.0f));
  Gather();
  EXPECT_EQ(count() > before, GetParam());  // else they stay where they are
}

TEST_P(ParameterVersionsTest, AddedParameters_ChangeNoCount) {
  const uint64_t before = count();
  Add();
  EXPECT_EQ(count(), before);
}

INSTANTIATE_TEST_SUITE_P(FlatAndInPlace, ParameterVersionsTest, ::testing::Bool());

TEST(ParameterVersionsOfTest, InferenceTensors_AreNotKnown) {
  const c10::InferenceMode inference;
  ParameterVersions versions;
  versions.Add(at::full({2}, 1.0f));
  EXPECT_FALSE(versions.are_known());
}

// What each Gather writes nobody knows of.
TEST(ParameterVersionsOfTest, CopiesOfTensors_HaveNone) {
  const at::Tensor parameter = at::full({2, 3}, 1.0f).t().set_requires_grad(true);
  const ParameterList list = ValueOrThrow(MakeParameterList({{parameter}}, {}));
  ReplicaList replicas;
  replicas.Add(list, Replica::MakeInPlace(list));
  ASSERT_TRUE(replicas.GatherValues().ok());
  EXPECT_EQ(replicas.parameter_memory()->writes, nullptr);
}

}  // namespace
}  // namespace optshard

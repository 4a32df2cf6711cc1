#include "client/replica/parameter_list.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

at::Tensor Parameter(const std::vector<int64_t>& shape) {
  return at::zeros(shape, at::TensorOptions().dtype(at::kFloat)).set_requires_grad(true);
}

at::Tensor Sparse() { return at::zeros({4, 4}).to_sparse(); }

std::string ErrorOf(const std::vector<std::vector<at::Tensor>>& groups,
                    const std::vector<std::string>& names = {}) {
  const auto list = MakeParameterList(groups, names);
  EXPECT_EQ(list.status().code(), absl::StatusCode::kInvalidArgument) << list.status();
  return std::string(list.status().message());
}

TEST(ParameterListTest, Make_TwoGroups_DescribesThemInOrder) {
  const auto list =
      MakeParameterList({{Parameter({2, 3}), Parameter({})}, {Parameter({0, 5})}}, {"a", "b", "c"});
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->space.parameter_count(), 3);
  ASSERT_EQ(list->space.group_count(), 2);
  EXPECT_EQ(list->space.parameter(0).name, "a");
  EXPECT_EQ(list->space.parameter(0).shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(list->space.parameter(1).shape, std::vector<int64_t>{});
  EXPECT_EQ(list->space.parameter(2).elements(), 0);
  EXPECT_EQ(list->space.group_of(2), 1);
  EXPECT_EQ(list->tensors.size(), 3u);
  EXPECT_THAT(list->warnings, IsEmpty());
}

TEST(ParameterListTest, Make_NoNames_NumbersThem) {
  const auto list = MakeParameterList({{Parameter({1})}, {Parameter({1})}}, {});
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->space.parameter(1).name, "parameter_1");
}

TEST(ParameterListTest, Make_FrozenParameter_IsAllowed) {
  EXPECT_TRUE(MakeParameterList({{Parameter({1}).set_requires_grad(false)}}, {}).ok());
}

TEST(ParameterListTest, Make_NoParameter_IsAnError) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf({{}, {}}), HasSubstr("empty"));
}

TEST(ParameterListTest, Make_WrongNumberOfNames_SaysBoth) {
  EXPECT_THAT(ErrorOf({{Parameter({1})}}, {"a", "b"}), HasSubstr("2 names for 1 parameters"));
}

TEST(ParameterListTest, Make_UndefinedTensor_NamesItsPlace) {
  EXPECT_THAT(ErrorOf({{Parameter({1})}, {Parameter({1}), at::Tensor()}}),
              AllOf(HasSubstr("\"parameter_2\" (number 1 of group 1)"), HasSubstr("undefined")));
}

TEST(ParameterListTest, Make_Sparse_NamesIt) {
  EXPECT_THAT(ErrorOf({{Sparse()}}, {"emb.weight"}),
              AllOf(HasSubstr("\"emb.weight\""), HasSubstr("Sparse"), HasSubstr("dense")));
}

TEST(ParameterListTest, Make_Integers_NamesThemAndTheTypesThereAre) {
  EXPECT_THAT(ErrorOf({{at::zeros({2}, at::TensorOptions().dtype(at::kLong))}}, {"w"}),
              AllOf(HasSubstr("\"w\""), HasSubstr("Long"), HasSubstr("bfloat16")));
}

TEST(ParameterListTest, Make_MetaDevice_NamesTheDevice) {
  EXPECT_THAT(ErrorOf({{at::empty({2}, at::TensorOptions().device(at::kMeta))}}, {"w"}),
              AllOf(HasSubstr("\"w\""), HasSubstr("meta"), HasSubstr("move it")));
}

TEST(ParameterListTest, Make_NonLeaf_NamesIt) {
  EXPECT_THAT(ErrorOf({{Parameter({2}).mul(2)}}, {"scaled"}),
              AllOf(HasSubstr("\"scaled\""), HasSubstr("not a leaf")));
}

TEST(ParameterListTest, Make_DuplicateInOneGroup_IsCountedOnceWithAWarning) {
  const at::Tensor twice = Parameter({2});
  const auto list = MakeParameterList({{twice, Parameter({1}), twice, Parameter({3})}},
                                      {"in.weight", "bias", "out.weight", "last"});
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->tensors.size(), 3u);
  EXPECT_EQ(list->space.parameter_count(), 3);
  EXPECT_EQ(list->space.parameter(0).name, "in.weight");
  EXPECT_EQ(list->space.parameter(2).name, "last");
  EXPECT_THAT(list->warnings, ElementsAre(AllOf(HasSubstr("\"in.weight\" (number 0 of group 0)"),
                                                HasSubstr("\"out.weight\" (number 2 of group 0)"),
                                                HasSubstr("counted once"))));
}

TEST(ParameterListTest, Make_GroupWithoutParameters_IsAllowedWithAWarning) {
  const auto list = MakeParameterList({{}, {Parameter({1})}}, {});
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->space.group_count(), 2);
  EXPECT_EQ(list->space.group_of(0), 1);
  EXPECT_THAT(list->empty_group_warnings,
              ElementsAre(HasSubstr("param group 0 has no parameters")));
  EXPECT_THAT(list->warnings, IsEmpty());
}

TEST(ParameterListTest, Make_DuplicateInTwoGroups_NamesBothPlaces) {
  const at::Tensor twice = Parameter({2});
  EXPECT_THAT(
      ErrorOf({{Parameter({1}), twice}, {twice}}, {"a", "b", "c"}),
      AllOf(HasSubstr("\"b\" (number 1 of group 0)"), HasSubstr("\"c\" (number 0 of group 1)")));
}

TEST(ParameterListTest, Make_TensorsThatShareMemory_NamesBoth) {
  const at::Tensor whole = at::zeros({4});
  EXPECT_THAT(ErrorOf({{whole.narrow(0, 1, 2), whole.narrow(0, 2, 2)}}, {"a", "b"}),
              AllOf(HasSubstr("\"a\""), HasSubstr("\"b\""), HasSubstr("share memory")));
  EXPECT_TRUE(MakeParameterList({{whole.narrow(0, 0, 2), whole.narrow(0, 2, 2)}}, {}).ok());
}

TEST(ParameterListTest, Make_NameGivenTwice_IsAnError) {
  EXPECT_THAT(ErrorOf({{Parameter({1}), Parameter({1})}}, {"a", "a"}),
              AllOf(HasSubstr("\"a\""), HasSubstr("has the same name")));
}

TEST(CheckGradientTest, Dense_IsOk) {
  EXPECT_TRUE(CheckGradient(Parameter({2}), at::ones({2}), "w").ok());
}

TEST(CheckGradientTest, Bad_NamesTheParameter) {
  const auto error = [](const at::Tensor& gradient) {
    const absl::Status status = CheckGradient(Parameter({4, 4}), gradient, "w");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error(Sparse()), AllOf(HasSubstr("\"w\""), HasSubstr("Sparse")));
  EXPECT_THAT(error(at::ones({4, 4}, at::TensorOptions().dtype(at::kDouble))),
              AllOf(HasSubstr("\"w\""), HasSubstr("Double")));
  EXPECT_THAT(error(at::ones({4})), AllOf(HasSubstr("\"w\""), HasSubstr("[4]")));
}

}  // namespace
}  // namespace optshard

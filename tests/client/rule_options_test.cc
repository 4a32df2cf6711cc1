#include "client/rule_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <string>

#include "client/status_error.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename Function>
absl::Status StatusOf(Function function) {
  try {
    function();
  } catch (const StatusError& error) {
    return error.status();
  }
  return absl::OkStatus();
}

TEST(RuleOptionsTest, Construct_UnknownRule_ListsTheKnownOnes) {
  const absl::Status status = StatusOf([] { RuleOptions("adama"); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("\"adama\""), HasSubstr("known rules: adadelta, adafactor, adagrad, ")));
}

TEST(RuleOptionsTest, Complete_UnknownOption_ListsTheKnownOnes) {
  const absl::Status status = StatusOf([] { RuleOptions("adam").Set("momentum", 0.9).Complete(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("no option \"momentum\"; it has "),
                                                   HasSubstr("betas"), HasSubstr("amsgrad")));
}

TEST(RuleOptionsTest, Complete_NothingSet_HasPyTorchsDefaults) {
  const Hyperparameters values = RuleOptions("adam").Complete().values();
  EXPECT_EQ(values.Number("lr"), 1e-3);
  EXPECT_EQ(values.List("betas"), (Numbers{0.9, 0.999}));
  EXPECT_EQ(values.Number("eps"), 1e-8);
  EXPECT_EQ(values.Number("weight_decay"), 0);
  EXPECT_FALSE(values.Flag("amsgrad"));
  EXPECT_FALSE(values.Flag("maximize"));
}

TEST(RuleOptionsTest, Convert_AdamOptions_KeepsEveryValue) {
  const RuleOptions rule = torch::optim::AdamOptions(0.5)
                               .betas(std::make_tuple(0.8, 0.7))
                               .eps(1e-3)
                               .weight_decay(0.1)
                               .amsgrad(true);
  EXPECT_EQ(rule.rule(), "adam");
  const Hyperparameters values = rule.Complete().values();
  EXPECT_EQ(values.Number("lr"), 0.5);
  EXPECT_EQ(values.List("betas"), (Numbers{0.8, 0.7}));
  EXPECT_EQ(values.Number("eps"), 1e-3);
  EXPECT_EQ(values.Number("weight_decay"), 0.1);
  EXPECT_TRUE(values.Flag("amsgrad"));
}

TEST(RuleOptionsTest, Convert_AdamWOptions_HasItsWeightDecay) {
  const RuleOptions rule = torch::optim::AdamWOptions(0.5);
  EXPECT_EQ(rule.rule(), "adamw");
  EXPECT_EQ(rule.Complete().values().Number("weight_decay"), 1e-2);
}

TEST(RuleOptionsTest, Convert_SgdOptions_KeepsEveryValue) {
  const RuleOptions rule =
      torch::optim::SGDOptions(0.5).momentum(0.9).weight_decay(0.1).nesterov(true);
  EXPECT_EQ(rule.rule(), "sgd");
  const Hyperparameters values = rule.Complete().values();
  EXPECT_EQ(values.Number("momentum"), 0.9);
  EXPECT_EQ(values.Number("dampening"), 0);
  EXPECT_EQ(values.Number("weight_decay"), 0.1);
  EXPECT_TRUE(values.Flag("nesterov"));
}

TEST(RuleOptionsTest, Convert_AdagradOptions_KeepsEveryValue) {
  const RuleOptions rule = RuleOptions::From(torch::optim::AdagradOptions(0.5)
                                                 .lr_decay(0.1)
                                                 .weight_decay(0.2)
                                                 .initial_accumulator_value(0.3)
                                                 .eps(1e-3));
  EXPECT_EQ(rule.rule(), "adagrad");
  const Hyperparameters values = rule.Complete().values();
  EXPECT_EQ(values.Number("lr"), 0.5);
  EXPECT_EQ(values.Number("lr_decay"), 0.1);
  EXPECT_EQ(values.Number("weight_decay"), 0.2);
  EXPECT_EQ(values.Number("initial_accumulator_value"), 0.3);
  EXPECT_EQ(values.Number("eps"), 1e-3);
}

TEST(RuleOptionsTest, Convert_RMSpropOptions_KeepsEveryValue) {
  const RuleOptions rule = RuleOptions::From(torch::optim::RMSpropOptions(0.5)
                                                 .alpha(0.8)
                                                 .eps(1e-3)
                                                 .weight_decay(0.1)
                                                 .momentum(0.9)
                                                 .centered(true));
  EXPECT_EQ(rule.rule(), "rmsprop");
  const Hyperparameters values = rule.Complete().values();
  EXPECT_EQ(values.Number("lr"), 0.5);
  EXPECT_EQ(values.Number("alpha"), 0.8);
  EXPECT_EQ(values.Number("eps"), 1e-3);
  EXPECT_EQ(values.Number("weight_decay"), 0.1);
  EXPECT_EQ(values.Number("momentum"), 0.9);
  EXPECT_TRUE(values.Flag("centered"));
}

TEST(RuleOptionsTest, Lbfgs_GivenInAnyWay_SaysWhyItCannotBeSharded) {
  const torch::optim::LBFGSOptions lbfgs(1);
  for (const absl::Status& status :
       {StatusOf([&] { RuleOptions::From(lbfgs); }), StatusOf([&] { RuleOptions rule = lbfgs; }),
        StatusOf([] { RuleOptions("LBFGS"); }),
        StatusOf([] { RuleOptions::OfClass<torch::optim::LBFGS>(); })}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("LBFGS cannot be sharded"), HasSubstr("give another rule")));
  }
}

TEST(RuleOptionsTest, OfClass_AnyClass_HasItsNameAndNoOptionsOfOurs) {
  RuleOptions rule = RuleOptions::OfClass<torch::optim::SGD>(0.5);
  EXPECT_EQ(rule.rule(), "torch::optim::SGD");
  EXPECT_EQ(rule.factory()({})->param_groups()[0].options().get_lr(), 0.5);
  for (const absl::Status& status :
       {StatusOf([&] { rule.Set("momentum", 0.9); }), StatusOf([] { RuleOptions("x", nullptr); }),
        StatusOf([&] { RuleOptions("adam", rule.factory()); })}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("optimizer class"));
  }
  EXPECT_EQ(StatusOf([&] { rule.set_lr(1); }).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(RuleOptionsTest, OverridingDefaults_OfTheSameClass_KeepsItsOwnFactory) {
  const RuleOptions given = RuleOptions::OfClass<torch::optim::SGD>(0.5);
  const RuleOptions merged =
      given.OverridingDefaults(RuleOptions::OfClass<torch::optim::SGD>(0.25));
  EXPECT_EQ(merged.factory()({})->param_groups()[0].options().get_lr(), 0.5);
}

TEST(RuleOptionsTest, From_OptionsOfAnotherClass_SaysWhichAreKnown) {
  struct Others : torch::optim::OptimizerCloneableOptions<Others> {};
  const absl::Status status = StatusOf([] { RuleOptions::From(Others()); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("RMSpropOptions"));
}

TEST(RuleOptionsTest, OverridingDefaults_OneValueSet_KeepsTheDefaultsOthers) {
  const RuleOptions merged = RuleOptions("adam").Set("lr", 1).OverridingDefaults(
      RuleOptions("adam").Set("lr", 0.1).Set("eps", 0.2));
  EXPECT_EQ(merged.values().Number("lr"), 1);
  EXPECT_EQ(merged.values().Number("eps"), 0.2);
}

TEST(RuleOptionsTest, OverridingDefaults_AnotherRules_TakesNothingOfThem) {
  const RuleOptions merged = RuleOptions("sgd")
                                 .Set("momentum", 0.9)
                                 .OverridingDefaults(RuleOptions("adam").Set("lr", 0.1));
  EXPECT_EQ(merged.rule(), "sgd");
  EXPECT_EQ(merged.values().ToString(), "momentum=0.9");
}

TEST(RuleOptionsTest, Lr_SetThroughTorchsInterface_IsTheRules) {
  RuleOptions rule("adam");
  torch::optim::OptimizerOptions& base = rule;
  EXPECT_EQ(base.get_lr(), 1e-3);
  base.set_lr(0.25);
  EXPECT_EQ(rule.values().Number("lr"), 0.25);
  EXPECT_EQ(base.clone()->get_lr(), 0.25);
}

}  // namespace
}  // namespace optshard

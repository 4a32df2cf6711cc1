#include "client/rule_options.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/status_error.h"
#include "server/update/update_rule.h"

namespace optshard {
namespace {

// AdamOptions and AdamWOptions have the same members, but no base class that has them.
template <typename Options>
void SetAdam(const Options& options, RuleOptions& rule) {
  rule.Set("lr", options.lr())
      .Set("betas", Numbers{std::get<0>(options.betas()), std::get<1>(options.betas())})
      .Set("eps", options.eps())
      .Set("weight_decay", options.weight_decay())
      .Set("amsgrad", options.amsgrad());
}

const UpdateRule& FindRule(absl::string_view name) {
  ThrowIfError(CheckCanBeSharded(name));
  return *ValueOrThrow(RuleRegistry::Find(name));
}

}  // namespace

RuleOptions::RuleOptions(absl::string_view rule) : rule_(FindRule(rule).spec().name) {}

RuleOptions::RuleOptions(const torch::optim::AdagradOptions& options) : RuleOptions("adagrad") {
  Set("lr", options.lr());
  Set("lr_decay", options.lr_decay());
  Set("weight_decay", options.weight_decay());
  Set("initial_accumulator_value", options.initial_accumulator_value());
  Set("eps", options.eps());
}

RuleOptions::RuleOptions(const torch::optim::AdamOptions& options) : RuleOptions("adam") {
  SetAdam(options, *this);
}

RuleOptions::RuleOptions(const torch::optim::AdamWOptions& options) : RuleOptions("adamw") {
  SetAdam(options, *this);
}

RuleOptions::RuleOptions(const torch::optim::LBFGSOptions&) : RuleOptions("lbfgs") {}

RuleOptions::RuleOptions(const torch::optim::RMSpropOptions& options) : RuleOptions("rmsprop") {
  Set("lr", options.lr());
  Set("alpha", options.alpha());
  Set("eps", options.eps());
  Set("weight_decay", options.weight_decay());
  Set("momentum", options.momentum());
  Set("centered", options.centered());
}

RuleOptions::RuleOptions(const torch::optim::SGDOptions& options) : RuleOptions("sgd") {
  Set("lr", options.lr());
  Set("momentum", options.momentum());
  Set("dampening", options.dampening());
  Set("weight_decay", options.weight_decay());
  Set("nesterov", options.nesterov());
}

RuleOptions::RuleOptions(absl::string_view name, OptimizerFactory factory)
    : rule_(name), factory_(std::move(factory)) {
  ThrowIfError(CheckCanBeSharded(name));
  if (factory_ == nullptr || name.empty() || RuleRegistry::Find(name).ok()) {
    throw StatusError(absl::InvalidArgumentError(
        absl::StrCat("an optimizer class was given as \"", name, "\" with ",
                     factory_ == nullptr ? "no factory" : "a factory",
                     "; expected a factory, and a name that is not empty and not that of a rule")));
  }
}

RuleOptions RuleOptions::From(const torch::optim::OptimizerOptions& options) {
  if (const auto* rule = dynamic_cast<const RuleOptions*>(&options)) return *rule;
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): one line an optimizer
  if (const auto* adagrad = dynamic_cast<const AdagradOptions*>(&options)) return *adagrad;
  if (const auto* adam = dynamic_cast<const AdamOptions*>(&options)) return *adam;
  if (const auto* adamw = dynamic_cast<const AdamWOptions*>(&options)) return *adamw;
  if (const auto* rmsprop = dynamic_cast<const RMSpropOptions*>(&options)) return *rmsprop;
  if (const auto* sgd = dynamic_cast<const SGDOptions*>(&options)) return *sgd;
  if (const auto* lbfgs = dynamic_cast<const LBFGSOptions*>(&options)) return *lbfgs;
  throw StatusError(absl::InvalidArgumentError(
      "options of a class that is not known here; give optshard::RuleOptions, "
      "torch::optim::AdagradOptions, AdamOptions, AdamWOptions, RMSpropOptions or SGDOptions; "
      "optshard::RuleOptions::OfClass takes any optimizer class"));
}

RuleOptions RuleOptions::OfGroup(const torch::optim::OptimizerParamGroup& group,
                                 const RuleOptions& defaults) {
  if (!group.has_options()) return defaults.Complete();
  return From(group.options()).OverridingDefaults(defaults).Complete();
}

RuleOptions& RuleOptions::Set(absl::string_view name, double value) {
  return SetValue(name, HyperValue(value));
}

RuleOptions& RuleOptions::Set(absl::string_view name, int value) {
  return Set(name, static_cast<double>(value));
}

RuleOptions& RuleOptions::Set(absl::string_view name, bool value) {
  return SetValue(name, HyperValue(value));
}

RuleOptions& RuleOptions::Set(absl::string_view name, Numbers value) {
  return SetValue(name, HyperValue(value));
}

RuleOptions& RuleOptions::SetValue(absl::string_view name, const HyperValue& value) {
  if (factory_ != nullptr) {
    throw StatusError(absl::InvalidArgumentError(absl::StrCat(
        "option \"", name, "\" was set for the optimizer class \"", rule_,
        "\", which has options of its own: give them to it in the factory, or change them at "
        "local_optimizer()")));
  }
  values_.Set(name, value);
  return *this;
}

RuleOptions& RuleOptions::Set(absl::string_view name, const char* value) {
  return Set(name, absl::string_view(value));
}

RuleOptions& RuleOptions::Set(absl::string_view name, absl::string_view value) {
  return SetValue(name, HyperValue(std::string(value)));
}

RuleOptions RuleOptions::OverridingDefaults(const RuleOptions& defaults) const {
  if (rule_ != defaults.rule_ || factory_ != nullptr) return *this;
  RuleOptions merged = defaults;
  for (const auto& [name, value] : values_.values()) merged.values_.Set(name, value);
  return merged;
}

RuleOptions RuleOptions::Complete() const {
  if (factory_ != nullptr) return *this;
  RuleOptions complete = *this;
  complete.values_ = ValueOrThrow(FindRule(rule_).Validate(values_));
  return complete;
}

torch::optim::Optimizer& RuleOptions::Driven() const {
  if (driven_ != nullptr) return *driven_;
  throw StatusError(
      absl::FailedPreconditionError(absl::StrCat("these options of the optimizer class \"", rule_,
                                                 "\" are not those of a ShardedOptimizer's param "
                                                 "group, so that there is no optimizer yet that "
                                                 "has a learning rate: give it in the factory")));
}

double RuleOptions::get_lr() const {
  if (factory_ != nullptr) return Driven().param_groups().at(0).options().get_lr();
  const HyperValue* lr = values_.Find("lr");
  if (lr != nullptr && absl::holds_alternative<double>(*lr)) return absl::get<double>(*lr);
  return Complete().values_.Number("lr");
}

void RuleOptions::set_lr(double lr) {
  if (factory_ == nullptr) {
    Set("lr", lr);
    return;
  }
  for (torch::optim::OptimizerParamGroup& group : Driven().param_groups()) {
    group.options().set_lr(lr);
  }
}

}  // namespace optshard

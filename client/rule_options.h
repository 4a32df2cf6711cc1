// Which update rule steps a param group, with which hyperparameters.
#ifndef OPTSHARD_CLIENT_RULE_OPTIONS_H_
#define OPTSHARD_CLIENT_RULE_OPTIONS_H_

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/optimizer_class.h"
#include "common/hyperparameters.h"

namespace torch::optim {
struct AdagradOptions;
struct AdamOptions;
struct AdamWOptions;
struct LBFGSOptions;
struct RMSpropOptions;
struct SGDOptions;
}  // namespace torch::optim

namespace optshard {

// Options of a param group, by PyTorch's names: "adam" has lr, betas, eps, weight_decay, amsgrad,
// maximize. An option that is not set has the rule's default. In a group that is given to the
// constructor of an optimizer, it has the value of the optimizer's defaults, if they are of the
// same rule: each group may have a rule of its own, which it keeps. The constructor of the
// optimizer checks names and values, and so does every step, since they may change between steps.
//
// docs/rules.md lists all rules and their options.
//
// torch::optim's LR schedulers drive it through get_lr and set_lr. Thread-compatible value type.
class RuleOptions : public torch::optim::OptimizerCloneableOptions<RuleOptions> {
 public:
  // Throws StatusError (INVALID_ARGUMENT) for an unknown one, listing the known ones. For "lbfgs"
  // it says why that optimizer cannot be sharded.
  explicit RuleOptions(absl::string_view rule);

  // The options of torch::optim's own optimizers, so that those can be swapped for this one.
  // NOLINTBEGIN(google-explicit-constructor)
  RuleOptions(const torch::optim::AdagradOptions& options);
  RuleOptions(const torch::optim::AdamOptions& options);
  RuleOptions(const torch::optim::AdamWOptions& options);
  RuleOptions(const torch::optim::LBFGSOptions& options);  // always throws, as "lbfgs"
  RuleOptions(const torch::optim::RMSpropOptions& options);
  RuleOptions(const torch::optim::SGDOptions& options);
  // NOLINTEND(google-explicit-constructor)

  // Of a group that is stepped by an optimizer class as it is, such as one of your own, made by
  // `factory`. `name` is compared between the ranks and shown by inspection.
  // docs/optimizer_classes.md says what a class sees and must do. Throws StatusError
  // (INVALID_ARGUMENT) for a rule's name and for LBFGS, saying why that cannot be sharded.
  RuleOptions(absl::string_view name, OptimizerFactory factory);

  // As above for Class(parameters, arguments...), by the class's own name:
  //   RuleOptions::OfClass<my::Optimizer>(my::Options(1e-3))
  template <typename Class, typename... Arguments>
  static RuleOptions OfClass(Arguments... arguments) {
    return RuleOptions(ClassName(typeid(Class)),
                       [arguments...](std::vector<at::Tensor> parameters)
                           -> std::unique_ptr<torch::optim::Optimizer> {
                         return std::make_unique<Class>(std::move(parameters), arguments...);
                       });
  }

  // Any of the above behind its base class. Throws StatusError (INVALID_ARGUMENT) for other
  // classes.
  static RuleOptions From(const torch::optim::OptimizerOptions& options);
  // All options of a group in an optimizer with these defaults. Throws as From and Complete.
  static RuleOptions OfGroup(const torch::optim::OptimizerParamGroup& group,
                             const RuleOptions& defaults);

  // INVALID_ARGUMENT for a class, which has options of its own.
  RuleOptions& Set(absl::string_view name, double value);
  RuleOptions& Set(absl::string_view name, int value);
  RuleOptions& Set(absl::string_view name, bool value);
  RuleOptions& Set(absl::string_view name, Numbers value);
  // One of the names that the option offers.
  RuleOptions& Set(absl::string_view name, absl::string_view value);
  RuleOptions& Set(absl::string_view name, const char* value);  // else it would be a flag

  // The rule's name, or that of the class.
  const std::string& rule() const { return rule_; }
  const OptimizerFactory& factory() const { return factory_; }  // of a class, else null
  // The options that were set. The others have their defaults.
  const Hyperparameters& values() const { return values_; }

  // These options, and those of `defaults` where this has none. Only these where `defaults` are of
  // another rule.
  RuleOptions OverridingDefaults(const RuleOptions& defaults) const;

  // All options of the rule. Throws StatusError (INVALID_ARGUMENT) naming rule, option, value and
  // range, or listing the known options.
  RuleOptions Complete() const;

  // Of a class: those of all param groups of the optimizer that steps this group on this rank. The
  // class's own error where its options have no lr. FAILED_PRECONDITION where the options are not
  // those of a ShardedOptimizer's group: then they are the factory's to set.
  double get_lr() const override;
  void set_lr(double lr) override;

  // From now on get_lr and set_lr of these options of a class are those of `optimizer`.
  void Drive(std::shared_ptr<torch::optim::Optimizer> optimizer) { driven_ = std::move(optimizer); }

  bool Drives(const torch::optim::Optimizer& optimizer) const {
    return driven_.get() == &optimizer;
  }

 private:
  RuleOptions& SetValue(absl::string_view name, const HyperValue& value);
  torch::optim::Optimizer& Driven() const;

  std::string rule_;
  OptimizerFactory factory_;
  std::shared_ptr<torch::optim::Optimizer> driven_;
  Hyperparameters values_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_RULE_OPTIONS_H_

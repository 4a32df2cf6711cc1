// Which update rule steps a param group, with which hyperparameters.
#ifndef OPTSHARD_CLIENT_RULE_OPTIONS_H_
#define OPTSHARD_CLIENT_RULE_OPTIONS_H_

#include <torch/optim/optimizer.h>

#include <string>

#include "absl/strings/string_view.h"
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

  // Any of the above behind its base class. Throws StatusError (INVALID_ARGUMENT) for other
  // classes.
  static RuleOptions From(const torch::optim::OptimizerOptions& options);
  // All options of a group in an optimizer with these defaults. Throws as From and Complete.
  static RuleOptions OfGroup(const torch::optim::OptimizerParamGroup& group,
                             const RuleOptions& defaults);

  RuleOptions& Set(absl::string_view name, double value);
  RuleOptions& Set(absl::string_view name, int value);
  RuleOptions& Set(absl::string_view name, bool value);
  RuleOptions& Set(absl::string_view name, Numbers value);
  // One of the names that the option offers.
  RuleOptions& Set(absl::string_view name, absl::string_view value);
  RuleOptions& Set(absl::string_view name, const char* value);  // else it would be a flag

  const std::string& rule() const { return rule_; }
  // The options that were set. The others have their defaults.
  const Hyperparameters& values() const { return values_; }

  // These options, and those of `defaults` where this has none. Only these where `defaults` are of
  // another rule.
  RuleOptions OverridingDefaults(const RuleOptions& defaults) const;

  // All options of the rule. Throws StatusError (INVALID_ARGUMENT) naming rule, option, value and
  // range, or listing the known options.
  RuleOptions Complete() const;

  double get_lr() const override;
  void set_lr(double lr) override;

 private:
  std::string rule_;
  Hyperparameters values_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_RULE_OPTIONS_H_

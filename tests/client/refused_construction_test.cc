// What the constructor says of what it cannot use, and that it leaves the tensors alone.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/lbfgs.h>
#include <torch/ordered_dict.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer.h"
#include "server/update/update_rule.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using testing::BytesOf;
using testing::Gradient;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunRanks;
using testing::Sgd;
using torch::optim::OptimizerParamGroup;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

OptimizerParamGroup Group(const std::vector<at::Tensor>& parameters) {
  return OptimizerParamGroup(parameters);
}

// Tensors that could be optimized.
struct Good {
  at::Tensor weight = Parameter({2, 3}, 1);  // has a gradient
  at::Tensor frozen = Gradient({4}, 2);
  Good() { weight.mutable_grad() = at::ones({2, 3}); }
};

bool HasHook(const at::Tensor& tensor) {
  namespace impl = torch::autograd::impl;
  return impl::get_autograd_meta(tensor) != nullptr && impl::post_acc_grad_hooks(tensor) != nullptr;
}

// All that an optimizer could change of a tensor.
std::string LooksOf(const at::Tensor& tensor) {
  const at::Tensor& gradient = tensor.grad();
  return absl::StrCat(BytesOf(tensor), " at ", reinterpret_cast<uintptr_t>(tensor.const_data_ptr()),
                      " used ", tensor.storage().use_count(), ", version ", tensor._version(),
                      ", requires_grad ", tensor.requires_grad(), ", hook ", HasHook(tensor),
                      ", gradient ", reinterpret_cast<uintptr_t>(gradient.unsafeGetTensorImpl()),
                      " ", gradient.defined() ? BytesOf(gradient) : "");
}

struct BadConstruction {
  const char* what;
  std::function<void(const Good&, ShardedOptimizerOptions)> construct;
  std::vector<std::string> said;
  int ranks = 1;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

// A parameter of three elements. Set past the setter, which would refuse it.
at::Tensor WithGradient(const at::Tensor& gradient) {
  at::Tensor parameter = Parameter({3}, 1);
  parameter.mutable_grad() = gradient;
  return parameter;
}

// Of the good tensors and another one.
std::function<void(const Good&, ShardedOptimizerOptions)> With(const at::Tensor& bad) {
  return [bad](const Good& good, const ShardedOptimizerOptions& options) {
    ShardedOptimizer({good.weight, good.frozen, bad}, Sgd(1), options);
  };
}

std::function<void(const Good&, ShardedOptimizerOptions)> With(const RuleOptions& rule) {
  return [rule](const Good& good, const ShardedOptimizerOptions& options) {
    ShardedOptimizer({good.weight, good.frozen}, rule, options);
  };
}

// Of the good tensors, with options that the rank changes.
std::function<void(const Good&, ShardedOptimizerOptions)> With(
    const std::function<void(ShardedOptimizerOptions&)>& change) {
  return [change](const Good& good, ShardedOptimizerOptions options) {
    change(options);
    ShardedOptimizer({good.weight, good.frozen}, Sgd(1), options);
  };
}

// Of one good tensor, and a group with the other and these options.
template <typename Options>
std::function<void(const Good&, ShardedOptimizerOptions)> WithGroupOf(const Options& options) {
  return [options](const Good& good, const ShardedOptimizerOptions& client_options) {
    std::vector<OptimizerParamGroup> groups = {Group({good.weight})};
    groups.emplace_back(std::vector<at::Tensor>{good.frozen}, std::make_unique<Options>(options));
    ShardedOptimizer(groups, Sgd(1), client_options);
  };
}

// A rule that takes no other type.
class Float32Only final : public UpdateRule {
 public:
  Float32Only() {
    spec_.name = "float32_only";
    spec_.dtypes = {DType::kFloat32};
  }
  const RuleSpec& spec() const override { return spec_; }
  void Update(DriverKind, const Coefficients&, const SpanUpdate&) const override {}

 protected:
  void SetCoefficients(const Hyperparameters&, StepNumber, Coefficients*) const override {}

 private:
  RuleSpec spec_;
};
const bool registered [[maybe_unused]] = RuleRegistry::Register(new Float32Only);

std::vector<BadConstruction> BadConstructions() {
  return {
      {"no parameters",
       [](const Good&, const auto& options) {
         ShardedOptimizer(std::vector<at::Tensor>(), Sgd(1), options);
       },
       {"rank 0", "empty"}},
      {"an undefined tensor", With(at::Tensor()), {"rank 0", "\"parameter_2\"", "undefined"}},
      {"a sparse parameter",
       With(at::zeros({4, 4}).to_sparse()),
       {"rank 0", "\"parameter_2\"", "Sparse", "to_dense()"}},
      {"integers",
       With(Gradient({2}, 1).to(at::kLong)),
       {"rank 0", "\"parameter_2\"", "Long", "convert it"}},
      {"another device",
       With(at::empty({2}, at::TensorOptions().device(at::kMeta))),
       {"rank 0", "\"parameter_2\"", "meta", "move it"}},
      {"the result of an operation",
       With(Parameter({2}, 1).mul(2)),
       {"rank 0", "\"parameter_2\"", "not a leaf", "detach()"}},
      {"a sparse gradient",
       With(WithGradient(at::ones({3}).to_sparse())),
       {"rank 0", "gradient of parameter \"parameter_2\"", "to_dense()"}},
      {"a gradient of another shape",
       With(WithGradient(at::ones({3, 1}))),
       {"rank 0", "gradient of parameter \"parameter_2\"", "[3, 1]"}},
      {"memory of another one",
       [](const Good& good, const auto& options) {
         ShardedOptimizer({good.weight, good.frozen, good.frozen.detach().narrow(0, 1, 2)}, Sgd(1),
                          options);
       },
       {"rank 0", "number 1 of group 0", "number 2 of group 0", "share memory"}},
      {"a parameter in two groups",
       [](const Good& good, const auto& options) {
         const std::vector<OptimizerParamGroup> groups = {Group({good.weight, good.frozen}),
                                                          Group({good.weight})};
         ShardedOptimizer(groups, Sgd(1), options);
       },
       {"rank 0", "number 0 of group 0", "number 0 of group 1", "leave it out of the other"}},
      {"too few names",
       With([](ShardedOptimizerOptions& options) { options.parameter_names = {"weight"}; }),
       {"rank 0", "1 names for 2 parameters"}},
      {"a name given twice",
       With([](ShardedOptimizerOptions& options) {
         options.parameter_names = {"weight", "weight"};
       }),
       {"rank 0", "\"weight\"", "has the same name"}},
      {"a value out of its range",
       With(RuleOptions("adam").Set("betas", Numbers{0.9, 1.0})),
       {"rank 0", "adam", "betas", "[0.9, 1]"}},
      {"a value that is no number",
       With(RuleOptions("adam").Set("eps", kNan)),
       {"rank 0", "adam", "eps", "nan"}},
      {"an unknown option",
       With(RuleOptions("sgd").Set("momentun", 0.9)),
       {"rank 0", "\"momentun\"", "it has ", "did you mean \"momentum\"?"}},
      {"an unknown option of a group",
       WithGroupOf(RuleOptions("sgd").Set("LR", 0.9)),
       {"rank 0: param group 1", "\"LR\"", "did you mean \"lr\"?"}},
      {"an option of the optimizer's rule in a group of another",
       WithGroupOf(RuleOptions("adam").Set("momentum", 1)),
       {"rank 0: param group 1", "\"adam\"", "no option \"momentum\""}},
      {"a group of an optimizer that cannot be sharded",
       WithGroupOf(torch::optim::LBFGSOptions(1)),
       {"rank 0: param group 1", "LBFGS cannot be sharded"}},
      {"no rank and no world size",
       With([](ShardedOptimizerOptions& options) { options = ShardedOptimizerOptions(); }),
       {"rank is not set", "world_size is not set", "FromEnvironment()"}},
      {"an unknown rule",
       [](const Good& good, const auto& options) {
         ShardedOptimizer({good.weight, good.frozen}, RuleOptions("sdg"), options);
       },
       {"no update rule \"sdg\"", "known rules: ", "did you mean \"sgd\"?"}},
      {"a rule of whole parameters where they are cut",
       [](const Good& good, ShardedOptimizerOptions options) {
         options.policy = PartitionPolicy::kBalanced;
         ShardedOptimizer({good.weight}, RuleOptions("muon"), options);
       },
       {"rank 0: param group 0", "\"muon\"", "\"balanced\"", "use \"greedy\""}},
      {"a shape that the rule does not take",
       [](const Good& good, const auto& options) {
         ShardedOptimizer({good.frozen, good.weight}, RuleOptions("muon"), options);
       },
       {"rank 0: param group 0", "\"parameter_0\" of the shape [4]", "\"muon\"", "\"adamw\""}},
      {"a type that the rule does not take",
       [](const Good& good, const auto& options) {
         const at::Tensor wide = Gradient({3}, 1).to(at::kDouble).set_requires_grad(true);
         ShardedOptimizer({good.weight, wide}, RuleOptions("float32_only"), options);
       },
       {"rank 0: param group 0", "\"parameter_1\" of the type float64", "\"float32_only\"",
        "takes parameters of float32 only", "convert the parameter"}},
      {"slots of 8 bits of a rule that has none",
       [](const Good& good, ShardedOptimizerOptions options) {
         options.state_dtype = "int8_dynamic";
         ShardedOptimizer({good.weight, good.frozen}, RuleOptions("adagrad"), options);
       },
       {"rank 0: param group 0", "\"adagrad\"", "\"int8_dynamic\"", "\"float32\"", "adamw"}},
      {"masters of a width that there is not",
       With([](ShardedOptimizerOptions& options) {
         options.master_weights = true;
         options.master_weight_bits = 16;
       }),
       {"rank 0", "master_weight_bits is 16", "expected 32, or 24"}},
      {"a width of masters that there are not",
       With([](ShardedOptimizerOptions& options) { options.master_weight_bits = 24; }),
       {"rank 0", "master_weight_bits is 24 and master_weights is false"}},
      {"a type to publish in where all is sent in another",
       [](const Good&, ShardedOptimizerOptions options) {
         options.publish_dtype = "bfloat16";
         const at::Tensor half = Gradient({3}, 1).to(at::kHalf).set_requires_grad(true);
         ShardedOptimizer({half}, Sgd(1), options);
       },
       {"rank 0", "publish_dtype is \"bfloat16\"", "float32"}},
      {"masters where nothing is rounded",
       With([](ShardedOptimizerOptions& options) { options.master_weights = true; }),
       {"rank 0", "master_weights", "bfloat16 or float16"}},
      {"gradients in float32 where they are that already",
       With([](ShardedOptimizerOptions& options) { options.main_gradients = true; }),
       {"rank 0", "main_gradients", "bfloat16 or float16"}},
      {"a type that nobody can be sent in",
       With([](ShardedOptimizerOptions& options) { options.publish_dtype = "float64"; }),
       {"rank 0", "publish_dtype is \"float64\"", "\"bfloat16\", \"float16\""}},
      {"an unknown type of the state",
       With([](ShardedOptimizerOptions& options) { options.state_dtype = "float8"; }),
       {"rank 0", "\"float8\"", "float32", "bfloat16"}},
      {"an unknown place of the state",
       With([](ShardedOptimizerOptions& options) { options.state_device = "disk"; }),
       {"rank 0", "state_device is \"disk\"", "\"cpu\""}},
      {"one copy that every rank would update",
       With([](ShardedOptimizerOptions& options) {
         options.share_parameters = true;
         options.policy = PartitionPolicy::kReplicated;
       }),
       {"rank 0", "share_parameters", "\"replicated\""}},
      {"one copy where the ranks share no memory",
       With([](ShardedOptimizerOptions& options) { options.share_parameters = true; }),
       {"share_parameters", "run them on one host"},
       2,
       absl::StatusCode::kFailedPrecondition},
      {"another parameter list on another rank",
       With([](ShardedOptimizerOptions& options) {
         options.parameter_names = {"weight", options.rank == 0 ? "bias" : "beta"};
       }),
       {"rank 0", "\"bias\"", "rank 1", "\"beta\""},
       2},
      {"another partition on another rank",
       With([](ShardedOptimizerOptions& options) {
         if (options.rank == 1) options.policy = PartitionPolicy::kBalanced;
       }),
       {"rank 0", "greedy", "rank 1", "balanced"},
       2},
  };
}

TEST(RefusedConstructionTest, Construct_WhatCannotBeUsed_SaysWhatAndLeavesTheTensorsAlone) {
  for (const BadConstruction& bad : BadConstructions()) {
    SCOPED_TRACE(bad.what);
    const std::vector<absl::Status> statuses =
        RunRanks(bad.ranks, [&bad](ShardedOptimizerOptions options) {
          options.parameters_as_bucket_view = true;
          const Good good;
          const std::string weight = LooksOf(good.weight);
          const std::string frozen = LooksOf(good.frozen);
          try {
            bad.construct(good, options);
          } catch (const StatusError&) {
            EXPECT_EQ(LooksOf(good.weight), weight);
            EXPECT_EQ(LooksOf(good.frozen), frozen);
            // Nothing of it is left that a good one would meet, unless the ranks have met.
            if (bad.ranks == 1) {
              ShardedOptimizer optimizer({good.weight, good.frozen}, Sgd(1), options);
              const std::string before = BytesOf(good.weight);
              optimizer.step();
              EXPECT_NE(BytesOf(good.weight), before);
              optimizer.Close();
            }
            throw;
          }
        });
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.code(), bad.code) << status;
      for (const std::string& text : bad.said) {
        EXPECT_THAT(std::string(status.message()), HasSubstr(text));
      }
    }
  }
}

template <typename... Arguments>
constexpr bool kCompiles = std::is_constructible_v<ShardedOptimizer, Arguments...>;
template <typename Parameters>
constexpr bool kMayBeGiven = kCompiles<Parameters, RuleOptions, ShardedOptimizerOptions>;

TEST(RefusedConstructionTest, Construct_WithoutAListOrARule_DoesNotCompile) {
  static_assert(kMayBeGiven<std::vector<at::Tensor>>);
  static_assert(!kMayBeGiven<at::Tensor>);
  static_assert(!kMayBeGiven<std::unordered_set<at::Tensor>>, "its order differs between ranks");
  static_assert(!kMayBeGiven<torch::OrderedDict<std::string, at::Tensor>>,
                "what named_parameters() returns");
  static_assert(!kCompiles<std::vector<at::Tensor>, ShardedOptimizerOptions>);
  static_assert(!std::is_default_constructible_v<RuleOptions>);
}

}  // namespace
}  // namespace optshard

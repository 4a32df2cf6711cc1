// Parameters of every type and layout, under everything that a trainer may do with them around a
// step, beside torch::optim. The numbers are exact in all types, so the values must be equal.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::Each;
using testing::HostRun;
using testing::RunRanksOfOneHost;
using torch::autograd::PostAccumulateGradHook;
using torch::autograd::Variable;
using torch::autograd::impl::set_post_acc_grad_hooks;

constexpr int kSteps = 4;

at::Tensor Ones(const std::vector<int64_t>& shape, at::ScalarType type) {
  return at::full(shape, 1, at::TensorOptions(type));
}

struct Layout {
  const char* name;
  at::Tensor (*make)(at::ScalarType type);
};

const Layout kLayouts[] = {
    {"matrix",
     [](at::ScalarType type) {
       return Ones({5, 3}, type);
     }},
    {"scalar", [](at::ScalarType type) { return Ones({}, type); }},
    {"no elements",
     [](at::ScalarType type) {
       return Ones({0, 7}, type);
     }},
    {"transposed",
     [](at::ScalarType type) {
       return Ones({3, 5}, type).t();
     }},
    {"every other column",
     [](at::ScalarType type) {
       return Ones({4, 6}, type).slice(1, 0, 6, 2);
     }},
    {"channels last",
     [](at::ScalarType type) {
       return Ones({2, 3, 2, 2}, type).contiguous(at::MemoryFormat::ChannelsLast);
     }},
};

// Doubles the gradient that has been accumulated.
class Doubling : public PostAccumulateGradHook {
 public:
  void operator()(const Variable& parameter) override {
    const at::NoGradGuard no_grad;
    parameter.mutable_grad().mul_(2);
  }
};

void SetDoubling(const at::Tensor& parameter) {
  set_post_acc_grad_hooks(parameter, std::make_unique<Doubling>());
}

struct Way {
  const char* name;
  void (*before_construction)(const at::Tensor& parameter) = nullptr;
  void (*after_construction)(const at::Tensor& parameter) = nullptr;
  int backwards = 1;
  bool sets_gradient = false;  // without a backward
  int frozen_in_step = 0;
};

const Way kWays[] = {
    {"one backward"},
    {"three backwards", nullptr, nullptr, 3},
    {"gradient set by hand", nullptr, nullptr, 1, true},
    {"hook of the tensor",
     [](const at::Tensor& parameter) {
       parameter.register_hook([](const at::Tensor& gradient) { return gradient.mul(2); });
     }},
    {"hook after accumulation, set before", SetDoubling},
    {"hook after accumulation, set later", nullptr, SetDoubling},
    {"frozen and unfrozen", nullptr, nullptr, 1, false, 2},
};

// One parameter of every layout for every way. A rank and the reference train it alike, but for
// the factor of their gradients.
class Model {
 public:
  Model(at::ScalarType type, absl::Span<const Layout> layouts) {
    for (const Layout& layout : layouts) {
      for (const Way& way : kWays) {
        names_.push_back(absl::StrCat(layout.name, ", ", way.name));
        parameters_.push_back(layout.make(type).detach().set_requires_grad(true));
        strides_.push_back(parameters_.back().strides().vec());
        ways_.push_back(&way);
        if (way.before_construction != nullptr) way.before_construction(parameters_.back());
      }
    }
  }

  template <typename Optimizer>
  void Train(Optimizer& optimizer, double factor) {
    for (size_t i = 0; i < ways_.size(); ++i) {
      if (ways_[i]->after_construction != nullptr) ways_[i]->after_construction(parameters_[i]);
    }
    for (int step = 1; step <= kSteps; ++step) {
      // To none, to zero, and not at all, so that gradients accumulate over steps.
      if (step <= 3) optimizer.zero_grad(/*set_to_none=*/step != 3);
      for (size_t i = 0; i < ways_.size(); ++i) {
        parameters_[i].set_requires_grad(step != ways_[i]->frozen_in_step);
        if (parameters_[i].requires_grad()) Backward(i, factor);
      }
      optimizer.step();
    }
  }

  const std::vector<std::string>& names() const { return names_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  bool KeepsItsLayout(size_t i) const {
    return parameters_[i].strides() == at::IntArrayRef(strides_[i]);
  }

 private:
  // The gradients of neighbours differ, so that one in the wrong place is seen.
  void Backward(size_t i, double factor) {
    const at::Tensor& parameter = parameters_[i];
    const at::Tensor gradient = at::arange(parameter.numel())
                                    .remainder(3)
                                    .sub(1)
                                    .mul(factor)
                                    .reshape(parameter.sizes())
                                    .to(parameter.scalar_type());
    if (ways_[i]->sets_gradient) {
      parameter.mutable_grad() = gradient.clone();  // torch zeroes no view
      return;
    }
    for (int time = 0; time < ways_[i]->backwards; ++time) {
      parameter.mul(gradient).sum().backward();
    }
  }

  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::vector<int64_t>> strides_;
  std::vector<const Way*> ways_;
};

class TrainersWaysTest : public ::testing::TestWithParam<std::tuple<at::ScalarType, bool>> {
 protected:
  at::ScalarType type() const { return std::get<0>(GetParam()); }
  bool flat() const { return std::get<1>(GetParam()); }

  void ExpectTorchsValues(int world_size, absl::Span<const Layout> layouts) {
    Model theirs(type(), layouts);
    torch::optim::SGD reference(theirs.parameters(), torch::optim::SGDOptions(0.25).momentum(0.5));
    theirs.Train(reference, 1);
    std::vector<Model> ours;
    for (int rank = 0; rank < world_size; ++rank) ours.emplace_back(type(), layouts);
    const HostRun run = RunRanksOfOneHost(world_size, [&](ShardedOptimizerOptions options) {
      Model& model = ours[options.rank];
      options.parameters_as_bucket_view = flat();
      options.parameter_names = model.names();
      ShardedOptimizer optimizer(model.parameters(),
                                 RuleOptions("sgd").Set("lr", 0.25).Set("momentum", 0.5), options);
      model.Train(optimizer, 2 * options.rank - world_size + 2);  // 1 on average
      optimizer.Close();
    });
    EXPECT_THAT(run.thrown, Each(absl::OkStatus()));
    EXPECT_EQ(run.one_pass_ranks, flat() ? world_size : 0);
    for (int rank = 0; rank < world_size; ++rank) {
      for (size_t i = 0; i < theirs.parameters().size(); ++i) {
        SCOPED_TRACE(absl::StrCat("rank ", rank, ", ", theirs.names()[i]));
        const at::Tensor& actual = ours[rank].parameters()[i].detach();
        const at::Tensor& expected = theirs.parameters()[i].detach();
        EXPECT_TRUE(at::equal(actual, expected)) << "is " << actual << ", expected " << expected;
        EXPECT_TRUE(flat() || ours[rank].KeepsItsLayout(i));
      }
    }
  }
};

TEST_P(TrainersWaysTest, Step_EveryLayoutInEveryWay_HasTorchsValues) {
  ExpectTorchsValues(2, kLayouts);
}

TEST_P(TrainersWaysTest, Step_MoreRanksThanParameters_HasTorchsValues) {
  ExpectTorchsValues(std::size(kWays) + 2, absl::MakeConstSpan(kLayouts).subspan(1, 1));
}

TEST_P(TrainersWaysTest, Step_NoParameterHasElements_HasTorchsValues) {
  ExpectTorchsValues(2, absl::MakeConstSpan(kLayouts).subspan(2, 1));
}

INSTANTIATE_TEST_SUITE_P(TypesAndMemory, TrainersWaysTest,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kDouble,
                                                              at::kBFloat16, at::kHalf),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           return absl::StrCat(c10::toString(std::get<0>(test.param)),
                                               std::get<1>(test.param) ? "Flat" : "InPlace");
                         });

}  // namespace
}  // namespace optshard

#include "tests/testing/recorded_job.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/replica/scalar_type.h"

namespace optshard::testing {
namespace {

// One of many numbers for each choice, so that they do not go together.
uint64_t Mix(uint64_t seed, uint64_t a, uint64_t b = 0, uint64_t c = 0) {
  uint64_t state = seed;
  for (const uint64_t each : {a, b, c}) {
    state = (state ^ each) * 0x9e3779b97f4a7c15U + 0x2545f4914f6cdd1dU;
    state ^= state >> 29;
  }
  return state;
}

enum Choice : uint64_t { kValues, kMissing, kMissingHere, kFrozen, kBackwards, kSpecial };

bool OneIn(uint64_t n, uint64_t random) { return random % n == 0; }

const char* NameOf(ElementOrder order) {
  switch (order) {
    case ElementOrder::kContiguous:
      return "";
    case ElementOrder::kTransposed:
      return " transposed";
    case ElementOrder::kEveryOther:
      return " every other element";
    case ElementOrder::kChannelsLast:
      return " channels last";
  }
  return "";
}

// Equal values, and that order in memory. No view: torch zeroes no gradient that is one.
at::Tensor InOrder(const at::Tensor& values, ElementOrder order) {
  std::vector<int64_t> strides = values.strides().vec();
  if (order == ElementOrder::kTransposed && values.dim() == 2) {
    strides = {1, values.size(0)};
  } else if (order == ElementOrder::kEveryOther) {
    for (int64_t& stride : strides) stride *= 2;
  } else if (order == ElementOrder::kChannelsLast && values.dim() == 4) {
    return values.contiguous(at::MemoryFormat::ChannelsLast);
  }
  return at::empty_strided(values.sizes(), strides, values.options()).copy_(values);
}

TrainedTensor Trained(std::string name, int64_t first, const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().contiguous();
  TrainedTensor trained = {std::move(name), first, *DTypeOf(values.scalar_type()), ""};
  if (values.numel() > 0) {
    trained.bytes.assign(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
  return trained;
}

class Model {
 public:
  Model(const RecordedJob& job, const ShardedOptimizerOptions& options)
      : job_(job), rank_(options.rank) {
    for (const RecordedGroup& group : job.groups) {
      std::vector<at::Tensor> tensors;
      for (const RecordedParameter& each : group.parameters) {
        const size_t index = parameters_.size();
        recorded_.push_back(each);
        names_.push_back(absl::StrCat(group.name, ", ", index, ": ", c10::toString(each.type), " [",
                                      absl::StrJoin(each.shape, ", "), "]", NameOf(each.order),
                                      each.sparse ? " sparse" : ""));
        // Other values on each rank: rank 0's must win.
        const uint64_t seed = Mix(job.seed, kValues, index, 1000 + rank_);
        const at::Tensor values = OrderSensitive(each.shape, seed, each.type);
        parameters_.push_back(InOrder(values, each.order).set_requires_grad(true));
        tensors.push_back(parameters_.back());
      }
      groups_.emplace_back(tensors, std::make_unique<RuleOptions>(group.rule));
    }
  }

  // Gradients of a step, as far as this rank has them.
  void Backward(int step) {
    // With averaged gradients all ranks have the same.
    const bool averaged = job_.gradient_mode == GradientMode::kAveraged;
    const uint64_t rank = averaged ? 0 : rank_;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor& parameter = parameters_[i];
      const auto choose = [&](Choice choice, uint64_t of) {
        return Mix(job_.seed, choice, i + 10000 * static_cast<uint64_t>(step), of);
      };
      parameter.set_requires_grad(!OneIn(8, choose(kFrozen, rank)));
      const bool missing = OneIn(8, choose(kMissing, 0)) || OneIn(8, choose(kMissingHere, rank));
      if (missing || !parameter.requires_grad()) continue;
      if (recorded_[i].sparse) {
        parameter.mutable_grad() = SparseGradient(i, choose(kValues, rank));
        continue;
      }
      const uint64_t backwards = choose(kBackwards, rank) % 3;
      if (backwards == 0) {
        parameter.mutable_grad() = InOrder(Gradient(i, choose(kValues, rank)), recorded_[i].order);
      }
      for (uint64_t time = 0; time < backwards; ++time) {
        parameter.mul(Gradient(i, choose(kValues, rank + 100 * time))).sum().backward();
      }
    }
  }

  const std::vector<torch::optim::OptimizerParamGroup>& groups() const { return groups_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  at::Tensor Gradient(size_t index, uint64_t seed) const {
    const at::Tensor& parameter = parameters_[index];
    at::Tensor gradient = OrderSensitive(parameter.sizes().vec(), seed, parameter.scalar_type());
    const uint64_t special = Mix(seed, kSpecial);
    if (job_.specials && OneIn(4, special) && gradient.numel() > 0) {
      gradient.view(-1)
          .select(0, static_cast<int64_t>(special / 8 % gradient.numel()))
          .fill_(OneIn(2, special / 4) ? std::numeric_limits<double>::infinity()
                                       : std::numeric_limits<double>::quiet_NaN());
    }
    return gradient;
  }

  // Some rows may come twice, as words do in a batch.
  at::Tensor SparseGradient(size_t index, uint64_t seed) const {
    const at::Tensor& parameter = parameters_[index];
    std::vector<int64_t> shape = parameter.sizes().vec();
    std::vector<int64_t> rows;
    for (uint64_t i = 0; i < 1 + seed % 7; ++i) {
      rows.push_back(static_cast<int64_t>(Mix(seed, i) % static_cast<uint64_t>(shape[0])));
    }
    shape[0] = static_cast<int64_t>(rows.size());
    return at::sparse_coo_tensor(at::tensor(rows).unsqueeze(0),
                                 OrderSensitive(shape, seed, parameter.scalar_type()),
                                 parameter.sizes());
  }

  const RecordedJob& job_;
  const uint64_t rank_;
  std::vector<torch::optim::OptimizerParamGroup> groups_;
  std::vector<at::Tensor> parameters_;
  std::vector<RecordedParameter> recorded_;
  std::vector<std::string> names_;
};

}  // namespace

at::Tensor OrderSensitive(const std::vector<int64_t>& shape, uint64_t seed, at::ScalarType type) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions(at::kDouble));
  uint64_t state = seed * 0x9e3779b97f4a7c15U + 1;
  auto* values = tensor.mutable_data_ptr<double>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    // All 53 bits of a double, and exponents that float16 has.
    const double mantissa = std::ldexp(static_cast<double>(state >> 11), -52) - 1;
    values[i] = std::ldexp(mantissa, static_cast<int>(state >> 59) % 24 - 12);
  }
  return tensor.to(type);
}

ShardedOptimizerOptions WithOptionsOf(const RecordedJob& job, ShardedOptimizerOptions options) {
  options.gradient_mode = job.gradient_mode;
  options.main_gradients = job.main_gradients;
  options.master_weights = job.state.master_weights;
  options.master_weight_bits = job.state.master_weight_bits;
  options.state_dtype = std::string(optshard::NameOf(job.state.format));
  options.publish_dtype = std::string(optshard::NameOf(job.state.publish_dtype));
  return options;
}

std::vector<TrainedTensor> SlotsOfEmbeddedOwner(const ShardedOptimizer& optimizer,
                                                const at::Tensor& parameter, int index) {
  int64_t first = 0;
  for (const OwnedRange& range : optimizer.owner_of(index)) {
    if (range.rank == optimizer.options().rank) first = range.offset_elements;
  }
  std::vector<TrainedTensor> slots;
  for (const auto& [name, tensor] : optimizer.state(parameter)) {
    const bool is_double = tensor.scalar_type() == at::kDouble;
    slots.push_back(Trained(name, tensor.dim() == 0 ? 0 : first,
                            tensor.to(is_double ? at::kDouble : at::kFloat)));
  }
  return slots;
}

std::vector<TrainedTensor> Train(const RecordedJob& job, const ShardedOptimizerOptions& options,
                                 const ReadSlots& read_slots, const RecordedSteps& steps) {
  Model model(job, options);
  ShardedOptimizerOptions all = WithOptionsOf(job, options);
  all.parameter_names = model.names();
  all.log_level = "error";  // not which parameters are frozen
  ShardedOptimizer optimizer(model.groups(), job.groups[0].rule, all);
  if (steps.before) steps.before(optimizer, model.parameters());
  for (int step = steps.first; step <= job.steps; ++step) {
    optimizer.zero_grad(/*set_to_none=*/step != 2);
    model.Backward(step);
    optimizer.step();
  }
  if (steps.after) steps.after(optimizer, model.parameters());
  std::vector<TrainedTensor> result;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const at::Tensor& parameter = model.parameters()[i];
    result.push_back(Trained(absl::StrCat(model.names()[i], ", parameter"), 0, parameter));
    for (TrainedTensor& slot : read_slots(optimizer, parameter, static_cast<int>(i))) {
      slot.name = absl::StrCat(model.names()[i], ", ", slot.name);
      result.push_back(std::move(slot));
    }
  }
  optimizer.Close();
  return result;
}

}  // namespace optshard::testing

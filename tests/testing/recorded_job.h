// Jobs that are data: param groups, their rules, and gradients that follow from rank, step and
// parameter. So one can be trained sharded and unsharded, and the results compared.
#ifndef OPTSHARD_TESTS_TESTING_RECORDED_JOB_H_
#define OPTSHARD_TESTS_TESTING_RECORDED_JOB_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "client/sharded_optimizer_options.h"
#include "common/gradient_mode.h"
#include "common/state_options.h"
#include "tests/testing/trained_tensors.h"

namespace optshard::testing {

// How the elements lie in memory.
enum class ElementOrder : uint8_t { kContiguous, kTransposed, kEveryOther, kChannelsLast };

struct RecordedParameter {
  std::vector<int64_t> shape;
  at::ScalarType type = at::kFloat;
  // Contiguous where it has too few dimensions for another order.
  ElementOrder order = ElementOrder::kContiguous;
  // Gradients are sparse: of some rows, as an Embedding's are.
  bool sparse = false;
};

struct RecordedGroup {
  std::string name;
  RuleOptions rule;
  std::vector<RecordedParameter> parameters;
};

struct RecordedJob {
  std::vector<RecordedGroup> groups;
  StateOptions state;
  GradientMode gradient_mode = GradientMode::kReduce;
  bool main_gradients = false;  // with a parameter of 16 bits, and sparse gradients of none
  int steps = 4;
  uint64_t seed = 1;
  bool specials = false;  // some gradients have an infinity or a NaN
};

// The options with the job's state and gradient mode.
ShardedOptimizerOptions WithOptionsOf(const RecordedJob& job, ShardedOptimizerOptions options);

// The parts that this rank keeps of the slots of the parameter of this index, with the slots'
// names.
using ReadSlots = std::function<std::vector<TrainedTensor>(const ShardedOptimizer& optimizer,
                                                           const at::Tensor& parameter, int index)>;

// By ShardedOptimizer::state. Slots of 16 and 8 bits are float32 here.
std::vector<TrainedTensor> SlotsOfEmbeddedOwner(const ShardedOptimizer& optimizer,
                                                const at::Tensor& parameter, int index);

// A part of a job's steps, and what is done around them.
struct RecordedSteps {
  using Call =
      std::function<void(ShardedOptimizer& optimizer, const std::vector<at::Tensor>& parameters)>;

  int first = 1;  // up to RecordedJob::steps
  Call before;
  Call after;
};

// Trains as the rank of `options`, closes the optimizer, and returns what it has left. Some
// parameters have no gradient in some steps, on one rank or on all; some are frozen for a step; the
// gradients come from one backward, from two, or are set without one. Throws as ShardedOptimizer.
std::vector<TrainedTensor> Train(const RecordedJob& job, const ShardedOptimizerOptions& options,
                                 const ReadSlots& read_slots = SlotsOfEmbeddedOwner,
                                 const RecordedSteps& steps = {});

// Of so many magnitudes that sums of them have other bits in another order.
at::Tensor OrderSensitive(const std::vector<int64_t>& shape, uint64_t seed,
                          at::ScalarType type = at::kFloat);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_RECORDED_JOB_H_

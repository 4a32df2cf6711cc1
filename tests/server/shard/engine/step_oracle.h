// One process that keeps everything: gradients summed in tree order, each parameter stepped whole
// by the scalar driver, in arrays of the type that it is computed in, and then rounded to its own,
// or encoded as a whole.
// What a sharded step must equal to the bit.
#ifndef OPTSHARD_TESTS_SERVER_SHARD_ENGINE_STEP_ORACLE_H_
#define OPTSHARD_TESTS_SERVER_SHARD_ENGINE_STEP_ORACLE_H_

#include <vector>

#include "common/gradient_mode.h"
#include "common/parameter_space.h"
#include "common/plan.h"
#include "common/state_options.h"
#include "server/shard/state/slot_memory.h"
#include "server/update/group_update.h"
#include "server/update/update_rule.h"
#include "tests/server/shard/engine/test_replica.h"

namespace optshard::testing {

class StepOracle {
 public:
  // The parameters are all zero at first.
  StepOracle(const ParameterSpace& space, std::vector<GroupUpdate> groups,
             const StateOptions& state = {});

  // Goes on with a space that begins with this one's parameters, and rules that begin with its.
  void Grow(const ParameterSpace& space, std::vector<GroupUpdate> groups);

  // Its master, too, where that is not rounded to it already.
  void SetParameter(int parameter, const Values& values);

  // gradients[rank][parameter]; an empty one of a parameter with elements is missing, and has[rank]
  // [parameter] says so for those without. kAveraged takes the lowest rank's that has one.
  // touched[parameter] says of each element whether it changes; empty: all do.
  void Step(const std::vector<std::vector<Values>>& gradients,
            const std::vector<std::vector<bool>>& has, GradientMode mode, const ReductionTree& tree,
            const std::vector<Hyperparameters>& hyperparameters,
            const std::vector<std::vector<bool>>& touched = {});

  const Values& Parameter(int parameter) const { return parameters_[parameter]; }
  // Not rounded to the parameter's type.
  const Values& Master(int parameter) const { return masters_[parameter]; }
  // Whole numbers, of a parameter that has them.
  const Values& Correction(int parameter) const { return corrections_[parameter]; }
  const Values& Slot(int parameter, int slot) const { return slots_[parameter][slot]; }
  bool has_own_shape(int parameter, int slot) const { return has_own_shape_[parameter][slot]; }
  int slot_count(int parameter) const { return static_cast<int>(slots_[parameter].size()); }
  StepNumber step_count(int parameter) const { return counts_[parameter]; }
  const ScalarSlots& scalar_slots(int parameter) const { return scalar_slots_[parameter]; }

 private:
  template <typename T>
  void StepIn(int parameter, const Values& gradient, const Coefficients& coefficients);
  void AddParameters();  // those of the space that are not there yet
  // Takes from the masters what their corrections do not hold.
  void Correct(int parameter);
  const UpdateRule& RuleOf(int parameter) const;

  ParameterSpace space_;
  std::vector<GroupUpdate> groups_;
  const StateOptions state_;
  std::vector<Values> parameters_;
  std::vector<Values> masters_;
  std::vector<Values> corrections_;
  std::vector<std::vector<Values>> slots_;  // empty where the parameter's shape lacks one
  std::vector<std::vector<bool>> has_own_shape_;
  std::vector<std::vector<SlotType>> types_;
  std::vector<StepNumber> counts_;
  std::vector<ScalarSlots> scalar_slots_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_SHARD_ENGINE_STEP_ORACLE_H_

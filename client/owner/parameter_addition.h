// What is added to an optimizer after its construction.
#ifndef OPTSHARD_CLIENT_OWNER_PARAMETER_ADDITION_H_
#define OPTSHARD_CLIENT_OWNER_PARAMETER_ADDITION_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

#include "absl/types/optional.h"

namespace optshard {

// A param group, or parameters that go to the end of one that is there. Value type.
struct ParameterAddition {
  static ParameterAddition Group(const torch::optim::OptimizerParamGroup& group);
  static ParameterAddition To(int group, std::vector<at::Tensor> parameters);

  const std::vector<at::Tensor>& parameters() const { return given.params(); }
  // Whether the same tensors go to the same group.
  bool IsSame(const ParameterAddition& other) const;

  torch::optim::OptimizerParamGroup given;  // of parameters alone: without options
  absl::optional<int> to;                   // which group; none: `given` is one
};

// What stands at the ends of `groups` and of their parameters after the `constructed` ones, by
// group, in the order in which it can be added: parameters first. Empty where `groups` differ in
// another way, too.
std::vector<ParameterAddition> AdditionsTo(
    const std::vector<std::vector<at::Tensor>>& constructed,
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

// Takes what AdditionsTo has found off the ends.
void TakeOff(const std::vector<ParameterAddition>& additions,
             std::vector<torch::optim::OptimizerParamGroup>& groups);
void PutOn(const ParameterAddition& addition,
           std::vector<torch::optim::OptimizerParamGroup>& groups);
// So that PutOn needs no memory for places.
void ReserveFor(const ParameterAddition& addition,
                std::vector<torch::optim::OptimizerParamGroup>& groups);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_PARAMETER_ADDITION_H_

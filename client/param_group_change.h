// Notices that a trainer's param groups hold other parameters than they did.
#ifndef OPTSHARD_CLIENT_PARAM_GROUP_CHANGE_H_
#define OPTSHARD_CLIENT_PARAM_GROUP_CHANGE_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

namespace optshard {

// How the groups differ from those of the construction, for people; empty where they do not.
// `constructed` are the parameters that the groups had then.
std::string DescribeGroupChange(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                const std::vector<std::vector<at::Tensor>>& constructed);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_PARAM_GROUP_CHANGE_H_

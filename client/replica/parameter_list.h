// A trainer's tensors, checked and described: what the ranks compare when they join.
#ifndef OPTSHARD_CLIENT_REPLICA_PARAMETER_LIST_H_
#define OPTSHARD_CLIENT_REPLICA_PARAMETER_LIST_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/parameter_space.h"

namespace optshard {

struct ParameterList {
  ParameterSpace space;
  std::vector<at::Tensor> tensors;  // by parameter index
  c10::Device device = c10::kCPU;   // on which all of them are
  // What the user may not have meant: a tensor that a group has twice.
  std::vector<std::string> warnings;
  // Likewise: a group without any. They stay true while parameters are added to other groups.
  std::vector<std::string> empty_group_warnings;
};

// A tensor that a group has twice, as tied weights are, is counted once, by its first name.
// INVALID_ARGUMENT naming the parameter, its group and its place there: no parameter at all, an
// undefined tensor, one that is not dense, not on the device of the first, whose type is none of
// DType, not a leaf, in two groups or sharing memory with another; a number of names that is
// neither 0 nor that of the tensors given.
absl::StatusOr<ParameterList> MakeParameterList(const std::vector<std::vector<at::Tensor>>& groups,
                                                const std::vector<std::string>& names);

// Gives every bfloat16 and float16 parameter a main gradient (ParameterSpec). INVALID_ARGUMENT
// where there is no such parameter.
absl::Status UseMainGradients(ParameterList& list);

// That a gradient can be reduced and applied: of the parameter's device, type and shape, dense or,
// on the CPU, with whole rows of the first dimension of two or more (COO). Not every rule takes the
// latter. INVALID_ARGUMENT naming the parameter.
absl::Status CheckGradient(const at::Tensor& parameter, const at::Tensor& gradient,
                           const std::string& name);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_PARAMETER_LIST_H_

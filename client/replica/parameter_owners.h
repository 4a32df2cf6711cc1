// Which rank owns what of a trainer's parameters, for the trainer to ask.
#ifndef OPTSHARD_CLIENT_REPLICA_PARAMETER_OWNERS_H_
#define OPTSHARD_CLIENT_REPLICA_PARAMETER_OWNERS_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "client/owned_range.h"
#include "client/replica/parameter_list.h"
#include "common/ids.h"
#include "common/parameter_space.h"
#include "common/partition.h"

namespace optshard {

// A rank's part of a parameter.
struct OwnedPart {
  int parameter = 0;
  std::string name;
  int64_t offset_elements = 0;
  std::vector<int64_t> shape;  // the parameter's where all of it is owned, else [elements]
};

// Follows from the parameter list, the world size and the policy alone, as the owners' own plan
// does: nothing is asked of them. Immutable; thread-safe.
class ParameterOwners {
 public:
  // INVALID_ARGUMENT as MakePartition.
  static absl::StatusOr<ParameterOwners> Make(const ParameterList& list, int world_size,
                                              PartitionPolicy policy);

  // Of the space. INVALID_ARGUMENT where the tensor is none of the parameters; a view of one, or
  // one that was detached from it, is another tensor.
  absl::StatusOr<int> IndexOf(const at::Tensor& parameter) const;

  const ParameterSpace& space() const { return space_; }
  int world_size() const { return world_size_; }

  // The param group of one of the list's parameters.
  int GroupOf(int index) const { return space_.group_of(index); }

  // By rank and offset. A parameter without elements has one range, of 0 elements. `index` is one
  // of the list.
  const std::vector<OwnedRange>& OwnersOf(int index) const { return owners_[index]; }
  // The same by the position over the groups in order. INVALID_ARGUMENT where there is none such.
  absl::StatusOr<std::vector<OwnedRange>> OwnersAt(int position) const;

  // What the rank owns of the parameter: one range, or nothing. `index` is one of the list.
  absl::optional<OwnedPart> PartOf(int index, Rank rank) const;

  // For every rank a copy of each of `groups`, which hold the list's parameters, with its options
  // and those parameters of which the rank owns a range. Groups without any are there, too.
  std::vector<std::vector<torch::optim::OptimizerParamGroup>> Divide(
      const std::vector<torch::optim::OptimizerParamGroup>& groups) const;

 private:
  ParameterOwners(const ParameterList& list, const Partition& partition);

  ParameterSpace space_;
  std::map<const c10::TensorImpl*, int> index_;
  std::vector<std::vector<OwnedRange>> owners_;  // by parameter
  int world_size_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_PARAMETER_OWNERS_H_

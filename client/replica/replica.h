// A rank's replica of the parameters: where the trainer's tensors lie, and how the step engine sees
// them.
#ifndef OPTSHARD_CLIENT_REPLICA_REPLICA_H_
#define OPTSHARD_CLIENT_REPLICA_REPLICA_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/replica/flat_memory.h"
#include "client/replica/parameter_list.h"
#include "common/buffer.h"
#include "common/dataplane/peer_replicas.h"
#include "common/parameter_space.h"
#include "server/shard/engine/step_input.h"

namespace optshard {

// Bound to the trainer's thread.
class Replica {
 public:
  // Moves the values into flat memory: param.data becomes a view of it, and so does param.grad as
  // soon as backward has computed it. What the trainer puts elsewhere is copied in: gradients that
  // it sets itself, values that torch::load has put there.
  static std::unique_ptr<Replica> MakeFlat(const ParameterList& list, FlatMemory memory);

  // Leaves every tensor where it is. One that is not contiguous is stepped in a contiguous copy.
  static std::unique_ptr<Replica> MakeInPlace(const ParameterList& list);

  virtual ~Replica() = default;

  // Fills tensors() for a step. Parameters with requires_grad() false have no gradient.
  // INVALID_ARGUMENT naming a parameter whose values or gradient cannot be used; nothing changed.
  absl::Status Gather();
  // Likewise without gradients, which it leaves alone: for what only reads the values. No Scatter
  // follows.
  absl::Status GatherValues();
  absl::Span<const ReplicaTensor> tensors() const { return tensors_; }
  // The flat memory, by region of the MemoryLayout; empty where tensors lie each on their own.
  virtual absl::Span<const ReplicaRegion> regions() const { return {}; }

  // How many gradients the last Gather copied.
  int64_t gradients_copied() const { return gradients_copied_; }

  // Called after every step, also after one that failed. Gives the trainer's tensors the engine's
  // values, and tells autograd that they changed: a backward through the old ones is then an error.
  void Scatter();

  // As torch::optim::Optimizer::zero_grad.
  virtual void ZeroGradients(bool set_to_none) = 0;

 protected:
  explicit Replica(const ParameterList& list);

  // Where the parameter's values are, contiguous.
  virtual Buffer GatherParameter(size_t index) = 0;
  // Where its gradient is, contiguous; NoElements() for one of no elements; no array for none.
  // `gradient` is defined, and checked.
  virtual ConstBuffer GatherGradient(size_t index, const at::Tensor& gradient) = 0;
  virtual void ScatterParameter(size_t index) = 0;

  // An array, but nothing in it.
  static ConstBuffer NoElements();
  // Where the values of a contiguous tensor begin: to be written, and to be read only.
  static Buffer ArrayOf(const at::Tensor& tensor);
  static ConstBuffer ReadArrayOf(const at::Tensor& tensor);
  const std::vector<at::Tensor>& parameters() const { return list_.tensors; }
  void CountCopy() { ++gradients_copied_; }

 private:
  absl::Status CheckAllValues() const;
  absl::Status CheckAllGradients() const;
  Buffer ValuesOf(size_t index);

  const ParameterList list_;
  std::vector<ReplicaTensor> tensors_;
  int64_t gradients_copied_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_REPLICA_H_

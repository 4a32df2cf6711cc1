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
#include "client/replica/main_gradient.h"
#include "client/replica/parameter_list.h"
#include "common/buffer.h"
#include "common/dataplane/peer_replicas.h"
#include "common/parameter_space.h"
#include "server/shard/engine/step_input.h"
#include "server/shard/snapshot/parameter_memory.h"

namespace optshard {

// Bound to the trainer's thread.
class Replica {
 public:
  // Moves the values into flat memory: param.data becomes a view of it, and so does param.grad as
  // soon as backward has computed it. What the trainer puts elsewhere is copied in: gradients that
  // it sets itself, values that torch::load has put there. Main gradients lie in flat memory, too.
  static std::unique_ptr<Replica> MakeFlat(const ParameterList& list, FlatMemory memory);

  // Leaves every tensor where it is. One that is not contiguous is stepped in a contiguous copy.
  // Main gradients are tensors of their own.
  static std::unique_ptr<Replica> MakeInPlace(const ParameterList& list);

  virtual ~Replica() = default;

  // Whether the next Gather copies values to where they lie between calls.
  virtual bool MovesValues() const = 0;

  // Fills tensors() for a step. Parameters with requires_grad() false have no gradient. The rows of
  // a sparse gradient are written where a dense one would be; param.grad stays what it is. In a
  // group of `all_rows` (by group; none where empty) it becomes dense there, with zeros.
  // INVALID_ARGUMENT naming a parameter whose values or gradient cannot be used; nothing changed.
  absl::Status Gather(const std::vector<bool>& all_rows = {});
  // Likewise without gradients, which it leaves alone: for what only reads the values. No Scatter
  // follows.
  absl::Status GatherValues();
  absl::Span<const ReplicaTensor> tensors() const { return tensors_; }
  // Where the values of tensors() lie, and what keeps that memory: added to `memory`.
  void AddTo(ParameterMemory* memory) const;
  // The flat memory, by region of the MemoryLayout; empty where tensors lie each on their own.
  virtual absl::Span<const ReplicaRegion> regions() const { return {}; }

  // The flat memory of the parameters has been mapped once more, and is used there from now on; the
  // gradients lie where they were. `owner` keeps it mapped. Nothing without flat memory.
  virtual void UseMapping(absl::Span<const ReplicaRegion> /*regions*/,
                          const std::shared_ptr<const void>& /*owner*/) {}

  // How many dense gradients the last Gather copied.
  int64_t gradients_copied() const { return gradients_copied_; }

  // Called after every step, also after one that failed. Gives the trainer's tensors the engine's
  // values, and tells autograd that they changed: a backward through the old ones is then an error.
  void Scatter();

  // As torch::optim::Optimizer::zero_grad.
  void ZeroGradients(bool set_to_none);

  // Null of a parameter that has none (ParameterSpec::main_gradient).
  MainGradient* main_gradient(int index) { return main_gradients_[index].get(); }

 protected:
  explicit Replica(const ParameterList& list);

  // Where the parameter's values are, contiguous.
  virtual Buffer GatherParameter(size_t index) = 0;
  // The tensor whose memory that was.
  virtual const at::Tensor& PlaceOfParameter(size_t index) const = 0;
  // Where its gradient is, contiguous; NoElements() for one of no elements; no array for none.
  // `gradient` is defined, and checked.
  virtual ConstBuffer PlaceOfGradient(size_t index, const at::Tensor& gradient) = 0;
  // Where the rows of a sparse gradient go: room for all of the parameter.
  virtual Buffer RowPlace(size_t index) = 0;
  virtual void ScatterParameter(size_t index) = 0;
  // `gradient` is the parameter's, and defined. It stays, of zeros.
  virtual void ZeroGradient(size_t index, at::Tensor& gradient) = 0;
  // From now on the parameter's gradient is this one, of which `place` is float32 memory.
  void SetMainGradient(size_t index, at::Tensor place);

  // An array, but nothing in it.
  static ConstBuffer NoElements();
  // Where the values of a contiguous tensor begin: to be written, and to be read only.
  static Buffer ArrayOf(const at::Tensor& tensor);
  static ConstBuffer ReadArrayOf(const at::Tensor& tensor);
  const std::vector<at::Tensor>& parameters() const { return list_.tensors; }
  c10::Device device() const { return list_.device; }
  const ParameterSpec& spec(size_t index) const {
    return list_.space.parameter(static_cast<int>(index));
  }
  void CountCopy() { ++gradients_copied_; }

 private:
  absl::Status CheckAllValues() const;
  absl::Status CheckAllGradients() const;
  Buffer ValuesOf(size_t index);
  void GatherGradient(size_t index, bool all_rows);
  void GatherRows(size_t index, const at::Tensor& gradient, bool all_rows);

  const ParameterList list_;
  std::vector<ReplicaTensor> tensors_;
  std::vector<std::unique_ptr<MainGradient>> main_gradients_;  // by parameter
  std::vector<std::vector<uint64_t>> row_marks_;               // by parameter, of sparse gradients
  int64_t gradients_copied_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_REPLICA_H_

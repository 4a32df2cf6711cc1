// Steps what a rank owns of a param group by an optimizer class.
#ifndef OPTSHARD_CLIENT_OWNER_CLASS_UPDATE_H_
#define OPTSHARD_CLIENT_OWNER_CLASS_UPDATE_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/optimizer_class.h"
#include "common/hyperparameters.h"
#include "server/update/trainer_update.h"

namespace optshard {

// The optimizer has tensors of its own, copies of the owned parameters: what it does to them is
// nobody's parameter yet. A parameter without a gradient has an undefined one there. Bound to the
// trainer's thread.
class ClassUpdate final : public TrainerUpdate {
 public:
  ClassUpdate(absl::string_view name, OptimizerFactory factory)
      : TrainerUpdate(name), factory_(std::move(factory)) {}

  // Makes the optimizer, before all calls below. `owned`: those of the group, by parameter index.
  // INVALID_ARGUMENT: the factory throws, returns nothing or what cannot be sharded.
  absl::Status Make(const std::map<int, at::Tensor>& owned);

  const std::shared_ptr<torch::optim::Optimizer>& optimizer() const { return optimizer_; }

  // "lr" of the optimizer's first param group, if there is one.
  Hyperparameters Readable() const;

  absl::StatusOr<Arrays> ArraysOf(int parameter) override;
  // UNKNOWN with what the optimizer's step() throws.
  absl::Status Update(absl::Span<const int> parameters) override;

 private:
  struct Owned {
    at::Tensor parameter;
    at::Tensor gradient;
  };

  const OptimizerFactory factory_;
  std::map<int, Owned> owned_;  // by parameter index
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  bool has_lr_ = false;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_CLASS_UPDATE_H_

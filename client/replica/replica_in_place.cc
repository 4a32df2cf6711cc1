#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "client/replica/replica.h"

namespace optshard {
namespace {

class InPlaceReplica : public Replica {
 public:
  explicit InPlaceReplica(const ParameterList& list)
      : Replica(list), copies_(list.tensors.size()), gradient_copies_(list.tensors.size()) {}

  void ZeroGradients(bool set_to_none) override {
    for (const at::Tensor& parameter : parameters()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        gradient.reset();
      } else {
        gradient.detach_().zero_();
      }
    }
  }

 protected:
  Buffer GatherParameter(size_t index) override {
    const at::Tensor& parameter = parameters()[index];
    if (parameter.is_contiguous()) {
      copies_[index].reset();
      return ArrayOf(parameter);
    }
    if (!copies_[index].defined()) {
      copies_[index] = at::empty(parameter.sizes(), parameter.options());
    }
    copies_[index].copy_(parameter.detach());
    return ArrayOf(copies_[index]);
  }

  ConstBuffer GatherGradient(size_t index, const at::Tensor& gradient) override {
    gradient_copies_[index].reset();
    if (gradient.numel() == 0) return NoElements();
    if (gradient.is_contiguous()) return ReadArrayOf(gradient);
    gradient_copies_[index] = gradient.detach().contiguous();
    CountCopy();
    return ReadArrayOf(gradient_copies_[index]);
  }

  void ScatterParameter(size_t index) override {
    gradient_copies_[index].reset();
    if (copies_[index].defined()) parameters()[index].detach().copy_(copies_[index]);
  }

 private:
  std::vector<at::Tensor> copies_;           // of parameters that are not contiguous
  std::vector<at::Tensor> gradient_copies_;  // for the time of a step
};

}  // namespace

std::unique_ptr<Replica> Replica::MakeInPlace(const ParameterList& list) {
  return std::make_unique<InPlaceReplica>(list);
}

}  // namespace optshard

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "client/replica/replica.h"

namespace optshard {
namespace {

class InPlaceReplica : public Replica {
 public:
  explicit InPlaceReplica(const ParameterList& list)
      : Replica(list),
        copies_(list.tensors.size()),
        gradient_copies_(list.tensors.size()),
        row_places_(list.tensors.size()) {
    c10::InferenceMode normal_tensors(false);
    for (size_t i = 0; i < parameters().size(); ++i) {
      if (!spec(i).main_gradient) continue;
      SetMainGradient(
          i, at::empty(parameters()[i].sizes(), parameters()[i].options().dtype(at::kFloat)));
    }
  }

  bool MovesValues() const override {
    return std::any_of(parameters().begin(), parameters().end(),
                       [](const at::Tensor& parameter) { return !parameter.is_contiguous(); });
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

  const at::Tensor& PlaceOfParameter(size_t index) const override {
    return copies_[index].defined() ? copies_[index] : parameters()[index];
  }

  ConstBuffer PlaceOfGradient(size_t index, const at::Tensor& gradient) override {
    gradient_copies_[index].reset();
    if (gradient.numel() == 0) return NoElements();
    if (gradient.is_contiguous()) return ReadArrayOf(gradient);
    gradient_copies_[index] = gradient.detach().contiguous();
    CountCopy();
    return ReadArrayOf(gradient_copies_[index]);
  }

  // Zeroed pages take no memory until rows are written there.
  Buffer RowPlace(size_t index) override {
    at::Tensor& place = row_places_[index];
    if (!place.defined()) {
      place = at::zeros(parameters()[index].sizes(), parameters()[index].options());
    }
    return ArrayOf(place);
  }

  void ScatterParameter(size_t index) override {
    gradient_copies_[index].reset();
    if (copies_[index].defined()) parameters()[index].detach().copy_(copies_[index]);
  }

  void ZeroGradient(size_t, at::Tensor& gradient) override { gradient.detach_().zero_(); }

 private:
  std::vector<at::Tensor> copies_;           // of parameters that are not contiguous
  std::vector<at::Tensor> gradient_copies_;  // for the time of a step
  std::vector<at::Tensor> row_places_;       // of parameters that had a sparse gradient
};

}  // namespace

std::unique_ptr<Replica> Replica::MakeInPlace(const ParameterList& list) {
  return std::make_unique<InPlaceReplica>(list);
}

}  // namespace optshard

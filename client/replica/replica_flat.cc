#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <memory>
#include <utility>
#include <vector>

#include "client/replica/gradient_placement.h"
#include "client/replica/replica.h"
#include "common/memory_layout.h"

namespace optshard {
namespace {

class FlatReplica : public Replica {
 public:
  FlatReplica(const ParameterList& list, FlatMemory memory)
      : Replica(list), layout_(list.space), regions_(std::move(memory.regions)) {
    c10::InferenceMode normal_tensors(false);
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters().size(); ++i) {
      const at::Tensor& parameter = parameters()[i];
      const MemoryLayout::Place& place = layout_.place(static_cast<int>(i));
      const ReplicaRegion& region = regions_[place.region];
      views_.emplace_back(FlatTensor(region.parameters.From(place.offset_elements),
                                     parameter.sizes(), memory.owner, device()),
                          FlatTensor(region.gradients.From(place.offset_elements),
                                     parameter.sizes(), memory.owner, device()));
      if (memory.has_values) {
        parameter.set_data(views_[i].values);
      } else {
        MoveValuesIn(i);
      }
      if (spec(i).main_gradient) {
        SetMainGradient(i, views_[i].gradient);
        continue;
      }
      if (parameter.grad().defined() && !parameter.grad().is_sparse()) MoveGradientIn(i);
      placements_.push_back(std::make_unique<GradientPlacement>(parameter, views_[i].gradient));
    }
  }

  absl::Span<const ReplicaRegion> regions() const override { return regions_; }

  bool MovesValues() const override {
    for (size_t i = 0; i < views_.size(); ++i) {
      if (!AreThere(i)) return true;
    }
    return false;
  }

  void UseMapping(absl::Span<const ReplicaRegion> regions,
                  const std::shared_ptr<const void>& owner) override {
    c10::InferenceMode normal_tensors(false);
    at::NoGradGuard no_grad;
    regions_.assign(regions.begin(), regions.end());
    for (size_t i = 0; i < views_.size(); ++i) {
      const at::Tensor& parameter = parameters()[i];
      const MemoryLayout::Place& place = layout_.place(static_cast<int>(i));
      const Buffer values = regions_[place.region].parameters.From(place.offset_elements);
      const void* const before = views_[i].values.const_data_ptr();
      if (values.data() == before) continue;
      const bool is_there = parameter.const_data_ptr() == before;
      views_[i] = Views(FlatTensor(values, parameter.sizes(), owner, device()), views_[i].gradient);
      // Else the next Gather moves the values in.
      if (is_there) parameter.set_data(views_[i].values);
    }
  }

 protected:
  Buffer GatherParameter(size_t index) override {
    if (!AreThere(index)) MoveValuesIn(index);
    return ArrayOf(views_[index].values);
  }

  const at::Tensor& PlaceOfParameter(size_t index) const override { return views_[index].values; }

  ConstBuffer PlaceOfGradient(size_t index, const at::Tensor& gradient) override {
    if (gradient.numel() == 0) return NoElements();
    if (!IsView(index)) {
      MoveGradientIn(index);
      CountCopy();
    }
    return ReadArrayOf(views_[index].gradient);
  }

  Buffer RowPlace(size_t index) override { return ArrayOf(views_[index].gradient); }

  void ScatterParameter(size_t) override {}

  void ZeroGradient(size_t index, at::Tensor& gradient) override {
    if (gradient.is_sparse()) {
      gradient.zero_();
      return;
    }
    views_[index].gradient.zero_();
    gradient = views_[index].gradient;
  }

 private:
  struct Views {
    Views(at::Tensor of_values, at::Tensor of_gradient)
        : values(std::move(of_values)),
          gradient(std::move(of_gradient)),
          values_use(values.storage(), /*tensors=*/1) {}

    at::Tensor values;
    at::Tensor gradient;
    OwnUse values_use;
  };

  bool IsView(size_t index) const {
    return parameters()[index].grad().is_same(views_[index].gradient);
  }

  bool AreThere(size_t index) const {
    const at::Tensor& parameter = parameters()[index];
    return parameter.const_data_ptr() == views_[index].values.const_data_ptr() &&
           parameter.is_contiguous();
  }

  void MoveValuesIn(size_t index) {
    views_[index].values.copy_(parameters()[index].detach());
    parameters()[index].set_data(views_[index].values);
  }

  void MoveGradientIn(size_t index) {
    views_[index].gradient.copy_(parameters()[index].grad().detach());
    parameters()[index].mutable_grad() = views_[index].gradient;
  }

  const MemoryLayout layout_;
  std::vector<ReplicaRegion> regions_;
  std::vector<Views> views_;  // by parameter
  std::vector<std::unique_ptr<GradientPlacement>> placements_;
};

}  // namespace

std::unique_ptr<Replica> Replica::MakeFlat(const ParameterList& list, FlatMemory memory) {
  return std::make_unique<FlatReplica>(list, std::move(memory));
}

}  // namespace optshard

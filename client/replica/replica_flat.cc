#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <memory>
#include <utility>
#include <vector>

#include "client/replica/gradient_placement.h"
#include "client/replica/replica.h"
#include "common/memory_layout.h"
#include "server/shard/state/mapped_memory.h"

namespace optshard {
namespace {

// `elements` numbers from `data` on, which `owner` keeps mapped.
at::Tensor TensorOver(float* data, int64_t elements, const std::shared_ptr<const void>& owner) {
  return at::from_blob(
      data, {elements}, [owner](void*) {}, at::TensorOptions().dtype(at::kFloat));
}

// A tensor of its own, with a version counter and a storage of its own, over part of `flat`, which
// it keeps alive.
at::Tensor ViewOf(const at::Tensor& flat, int64_t offset, at::IntArrayRef sizes) {
  return at::from_blob(
      flat.mutable_data_ptr<float>() + offset, sizes, [flat](void*) {},
      at::TensorOptions().dtype(at::kFloat));
}

class FlatReplica : public Replica {
 public:
  FlatReplica(const ParameterList& list, FlatMemory memory)
      : Replica(list), layout_(list.space), regions_(std::move(memory.regions)) {
    c10::InferenceMode normal_tensors(false);
    at::NoGradGuard no_grad;
    for (size_t r = 0; r < regions_.size(); ++r) {
      const int64_t elements = layout_.regions()[r].elements;
      values_.push_back(TensorOver(regions_[r].parameters, elements, memory.owner));
      gradients_.push_back(TensorOver(regions_[r].gradients, elements, memory.owner));
    }
    for (size_t i = 0; i < parameters().size(); ++i) {
      const at::Tensor& parameter = parameters()[i];
      const MemoryLayout::Place& place = layout_.place(static_cast<int>(i));
      views_.push_back(
          {ViewOf(values_[place.region], place.offset_elements, parameter.sizes()),
           ViewOf(gradients_[place.region], place.offset_elements, parameter.sizes())});
      if (memory.has_values) {
        parameter.set_data(views_[i].values);
      } else {
        MoveValuesIn(i);
      }
      if (parameter.grad().defined()) MoveGradientIn(i);
      placements_.push_back(std::make_unique<GradientPlacement>(parameter, views_[i].gradient));
    }
  }

  absl::Span<const ReplicaRegion> regions() const override { return regions_; }

  void ZeroGradients(bool set_to_none) override {
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters().size(); ++i) {
      at::Tensor& gradient = parameters()[i].mutable_grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        gradient.reset();
      } else {
        views_[i].gradient.zero_();
        gradient = views_[i].gradient;
      }
    }
  }

 protected:
  float* GatherParameter(size_t index) override {
    if (parameters()[index].const_data_ptr() != views_[index].values.const_data_ptr() ||
        !parameters()[index].is_contiguous()) {
      MoveValuesIn(index);
    }
    return views_[index].values.mutable_data_ptr<float>();
  }

  const float* GatherGradient(size_t index, const at::Tensor& gradient) override {
    if (!IsView(index)) {
      MoveGradientIn(index);
      CountCopy();
    }
    if (gradient.numel() == 0) return &kNoElements;
    return views_[index].gradient.const_data_ptr<float>();
  }

  void ScatterParameter(size_t) override {}

 private:
  struct Views {
    at::Tensor values;
    at::Tensor gradient;
  };

  bool IsView(size_t index) const {
    return parameters()[index].grad().is_same(views_[index].gradient);
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
  const std::vector<ReplicaRegion> regions_;
  std::vector<at::Tensor> values_;     // by region
  std::vector<at::Tensor> gradients_;  // by region
  std::vector<Views> views_;           // by parameter
  std::vector<std::unique_ptr<GradientPlacement>> placements_;
};

}  // namespace

absl::StatusOr<FlatMemory> FlatMemory::Private(const ParameterSpace& space) {
  // In huge pages where the system has them: an update of gigabytes otherwise spends a tenth of its
  // time on looking addresses up.
  auto owned = std::make_shared<std::vector<MappedMemory>>();
  FlatMemory memory;
  const MemoryLayout layout(space);
  for (const MemoryLayout::Region& region : layout.regions()) {
    ReplicaRegion placed;
    for (const auto& [data, what] : {std::pair(&placed.parameters, "the parameters"),
                                     std::pair(&placed.gradients, "the gradients")}) {
      absl::StatusOr<MappedMemory> allocated = MappedMemory::Allocate(region.bytes(), what);
      if (!allocated.ok()) return allocated.status();
      *data = static_cast<float*>(allocated->data());
      owned->push_back(*std::move(allocated));
    }
    memory.regions.push_back(placed);
  }
  memory.owner = std::move(owned);
  return memory;
}

std::unique_ptr<Replica> Replica::MakeFlat(const ParameterList& list, FlatMemory memory) {
  return std::make_unique<FlatReplica>(list, std::move(memory));
}

}  // namespace optshard

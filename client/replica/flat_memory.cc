#include "client/replica/flat_memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/InferenceMode.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/replica/scalar_type.h"
#include "common/memory_layout.h"
#include "server/shard/state/mapped_memory.h"

namespace optshard {
namespace {

struct FlatContext {
  std::shared_ptr<const void> owner;
  std::atomic<int> own_uses{0};
};

// The deleter of a tensor's memory tells whose it is.
void ReleaseFlatMemory(void* context) { delete static_cast<FlatContext*>(context); }

// Null where the memory is not FlatTensor's.
FlatContext* ContextOf(const c10::Storage& storage) {
  if (!storage || storage.data_ptr().get_deleter() != &ReleaseFlatMemory) return nullptr;
  return static_cast<FlatContext*>(storage.data_ptr().get_context());
}

bool IsShared(const c10::Storage& storage) {
  const FlatContext* const context = ContextOf(storage);
  const int own = context == nullptr ? 0 : context->own_uses.load();
  return static_cast<int64_t>(storage.use_count()) > 1 + own;
}

bool IsOfLibTorchOrOurs(const c10::Storage& storage) {
  return ContextOf(storage) != nullptr ||
         storage.data_ptr().get_deleter() ==
             c10::GetAllocator(storage.device_type())->raw_deleter();
}

const char* WhatItBreaks(const at::Tensor& parameter) {
  if (parameter.numel() == 0) return nullptr;
  if (IsShared(parameter.storage())) return "shares its storage with another tensor";
  if (!IsOfLibTorchOrOurs(parameter.storage())) {
    return "lies in memory that LibTorch did not allocate";
  }
  if (!parameter.is_contiguous()) return "is not contiguous";
  return nullptr;
}

// From LibTorch's allocator, which trainers watch and limit.
absl::StatusOr<FlatMemory> OnDevice(const ParameterList& list) {
  const c10::InferenceMode normal_tensors(false);
  auto owned = std::make_shared<std::vector<at::Tensor>>();
  FlatMemory memory;
  const MemoryLayout layout(list.space);
  const auto zeros = [&](int64_t bytes) {
    owned->push_back(at::zeros({bytes}, at::TensorOptions(at::kByte).device(list.device)));
    return owned->back().mutable_data_ptr();
  };
  try {
    for (const MemoryLayout::Region& region : layout.regions()) {
      const Buffer parameters(zeros(region.bytes()), region.dtype);
      memory.regions.push_back(
          {parameters, Buffer(zeros(region.gradient_bytes()), region.gradient_dtype)});
    }
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the flat memory of the parameters and gradients: ", error.what_without_backtrace()));
  }
  memory.owner = std::move(owned);
  return memory;
}

}  // namespace

absl::StatusOr<FlatMemory> FlatMemory::Private(const ParameterList& list) {
  if (!list.device.is_cpu()) return OnDevice(list);
  // In huge pages where the system has them: an update of gigabytes otherwise spends a tenth of its
  // time on looking addresses up.
  auto owned = std::make_shared<std::vector<MappedMemory>>();
  FlatMemory memory;
  const MemoryLayout layout(list.space);
  for (const MemoryLayout::Region& region : layout.regions()) {
    absl::StatusOr<MappedMemory> parameters =
        MappedMemory::Allocate(region.bytes(), "the parameters");
    if (!parameters.ok()) return parameters.status();
    absl::StatusOr<MappedMemory> gradients =
        MappedMemory::Allocate(region.gradient_bytes(), "the gradients");
    if (!gradients.ok()) return gradients.status();
    memory.regions.push_back({Buffer(parameters->data(), region.dtype),
                              Buffer(gradients->data(), region.gradient_dtype)});
    owned->push_back(*std::move(parameters));
    owned->push_back(*std::move(gradients));
  }
  memory.owner = std::move(owned);
  return memory;
}

at::Tensor FlatTensor(Buffer array, at::IntArrayRef sizes, std::shared_ptr<const void> owner,
                      c10::Device device) {
  auto context = std::make_unique<FlatContext>();
  context->owner = std::move(owner);
  return at::for_blob(array.data(), sizes)
      .context(context.release(), &ReleaseFlatMemory)
      .target_device(device)
      .options(at::TensorOptions(ScalarTypeOf(array.dtype())).device(device))
      .make_tensor();
}

OwnUse::OwnUse(const c10::Storage& storage, int tensors) : storage_(storage), uses_(1 + tensors) {
  if (FlatContext* const context = ContextOf(storage_)) context->own_uses += uses_;
}

OwnUse::~OwnUse() {
  if (FlatContext* const context = ContextOf(storage_)) context->own_uses -= uses_;
}

OwnUse::OwnUse(OwnUse&& other) noexcept
    : storage_(std::exchange(other.storage_, c10::Storage())), uses_(other.uses_) {}

OwnUse& OwnUse::operator=(OwnUse&& other) noexcept {
  std::swap(storage_, other.storage_);
  std::swap(uses_, other.uses_);
  return *this;
}

std::string WhatFlatMemoryBreaks(const ParameterList& list) {
  for (size_t i = 0; i < list.tensors.size(); ++i) {
    const char* const what = WhatItBreaks(list.tensors[i]);
    if (what == nullptr) continue;
    return absl::StrCat("parameter \"", list.space.parameter(static_cast<int>(i)).name, "\" ",
                        what);
  }
  return "";
}

}  // namespace optshard

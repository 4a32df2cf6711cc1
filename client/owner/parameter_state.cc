#include "client/owner/parameter_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "client/replica/scalar_type.h"
#include "common/attach/doorbell.h"
#include "common/block_code.h"
#include "server/shard/state/parameter_slots.h"
#include "server/shard/state/state_access.h"

namespace optshard {
namespace {

// Elements that are converted at a time: as many as a shard server takes at once.
constexpr int64_t kChunk = kStateWindowElements;
static_assert(kChunk % kCodeGrid == 0, "StateAccess::Write takes whole blocks of codes");

absl::Status CheckNames(const std::vector<ParameterSlot>& slots, const StateSlots& given,
                        const std::string& what) {
  std::vector<std::string> names;
  for (const ParameterSlot& slot : slots) names.push_back(slot.name);
  const auto error = [&](const std::string& difference) {
    return absl::InvalidArgumentError(absl::StrCat(what, " ", difference, "; its slots are ",
                                                   absl::StrJoin(names, ", "),
                                                   ", and all of them must be given"));
  };
  for (const std::string& name : names) {
    if (given.count(name) == 0) return error(absl::StrCat("lacks the slot \"", name, "\""));
  }
  for (const auto& [name, tensor] : given) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return error(absl::StrCat("has no slot \"", name, "\""));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSlot(const ParameterSlot& slot, const OwnedPart& part, const at::Tensor& given,
                       const std::string& what) {
  const auto error = [&](const auto&... is) {
    return absl::InvalidArgumentError(
        absl::StrCat("the slot \"", slot.name, "\" of ", what, " ", is...));
  };
  if (!given.defined()) return error("is an undefined tensor");
  if (given.layout() != at::kStrided || !given.device().is_cpu()) {
    return error("is ", c10::str(given.layout()), " on ", given.device().str(),
                 ", expected a dense tensor on the CPU");
  }
  if (!slot.is_scalar()) {
    if (given.scalar_type() != TypeOf(slot)) {
      return error("is ", c10::toString(given.scalar_type()), ", expected ",
                   c10::toString(TypeOf(slot)));
    }
    if (given.sizes() != ShapeOf(slot, part)) {
      return error("has the shape ", ShapeText(given.sizes()), ", expected ",
                   ShapeText(ShapeOf(slot, part)));
    }
    return absl::OkStatus();
  }
  if (given.numel() != 1 || given.is_complex()) {
    return error("is ", c10::toString(given.scalar_type()), " ", ShapeText(given.sizes()),
                 ", expected one real number");
  }
  const auto value = given.item<double>();
  if (slot.kind == SlotKind::kStep && !IsStepCount(value)) {
    return error("is ", value, ", expected how often the parameter was updated: 0, 1, 2, ...");
  }
  return absl::OkStatus();
}

// Calls `work` with each chunk's tensor of `flat`, and its first element, until it has an error.
template <typename Work>
absl::Status ForEachChunk(const at::Tensor& flat, const Work& work) {
  absl::Status status;
  for (int64_t begin = 0; begin < flat.numel() && status.ok(); begin += kChunk) {
    status = work(flat.narrow(0, begin, std::min(kChunk, flat.numel() - begin)), begin);
  }
  return status;
}

// Likewise with the chunk's values.
template <typename Work>
absl::Status ForEachChunkOfDoubles(const at::Tensor& flat, const Work& work) {
  return ForEachChunk(flat, [&](const at::Tensor& chunk, int64_t begin) {
    const at::Tensor values = chunk.to(at::kDouble).contiguous();
    return work(
        absl::MakeConstSpan(values.const_data_ptr<double>(), static_cast<size_t>(values.numel())),
        begin);
  });
}

// All of `part`'s slots can be replaced by those given.
absl::Status Check(const std::vector<ParameterSlot>& slots, const OwnedPart& part,
                   const StateSlots& given) {
  const std::string what = absl::StrCat("parameter ", part.parameter, " \"", part.name, "\"");
  if (absl::Status status = CheckNames(slots, given, what); !status.ok()) return status;
  for (const ParameterSlot& slot : slots) {
    absl::Status status = CheckSlot(slot, part, given.at(slot.name), what);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

std::string ShapeText(at::IntArrayRef shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

at::Tensor StepTensor(double count) {
  const bool is_exact = static_cast<double>(static_cast<float>(count)) == count;
  return at::full({}, count, at::TensorOptions(is_exact ? at::kFloat : at::kDouble));
}

at::ScalarType TypeOf(const ParameterSlot& slot) {
  return slot.kind == SlotKind::kCorrections ? at::kChar : ScalarTypeOf(slot.dtype());
}

at::IntArrayRef ShapeOf(const ParameterSlot& slot, const OwnedPart& part) {
  return slot.shape.has_value() ? at::IntArrayRef(*slot.shape) : at::IntArrayRef(part.shape);
}

int64_t OffsetOf(const ParameterSlot& slot, const OwnedPart& part) {
  return slot.shape.has_value() ? 0 : part.offset_elements;
}

absl::Status ReadElements(StateAccess& state, int parameter, int slot, int64_t offset_elements,
                          const at::Tensor& to) {
  std::vector<double> values;
  return ForEachChunk(to, [&](const at::Tensor& chunk, int64_t begin) {
    values.resize(chunk.numel());
    absl::Status copied =
        state.Read(parameter, slot, offset_elements + begin, absl::MakeSpan(values));
    if (!copied.ok()) return copied;
    chunk.copy_(at::from_blob(values.data(), chunk.sizes(), at::TensorOptions(at::kDouble)));
    return copied;
  });
}

absl::Status WriteElements(StateAccess& state, int parameter, int slot, int64_t offset_elements,
                           const at::Tensor& from) {
  return ForEachChunkOfDoubles(from, [&](absl::Span<const double> values, int64_t begin) {
    return state.Write(parameter, slot, offset_elements + begin, values);
  });
}

absl::Status StageElements(StateAccess& state, int parameter, int slot, int64_t offset_elements,
                           const at::Tensor& from) {
  return ForEachChunkOfDoubles(from, [&](absl::Span<const double> values, int64_t begin) {
    return state.Stage(parameter, slot, offset_elements + begin, values);
  });
}

absl::StatusOr<StateSlots> ReadState(OwnerLink& owner, const ParameterOwners& owners, Rank rank,
                                     const at::Tensor& parameter, absl::Duration timeout) {
  const absl::StatusOr<int> index = owners.IndexOf(parameter);
  if (!index.ok()) return index.status();
  const absl::StatusOr<StateAccess*> state = owner.state(timeout);
  if (!state.ok()) return state.status();
  StateSlots result;
  const absl::optional<OwnedPart> part = owners.PartOf(*index, rank);
  if (!part.has_value()) return result;
  const c10::InferenceMode normal_tensors(false);
  const at::NoGradGuard no_grad;
  const std::vector<ParameterSlot> slots = (*state)->Slots(*index);
  for (size_t s = 0; s < slots.size(); ++s) {
    const ParameterSlot& slot = slots[s];
    const bool is_step = slot.kind == SlotKind::kStep;
    const at::Tensor tensor =
        at::empty(ShapeOf(slot, *part), at::TensorOptions(is_step ? at::kDouble : TypeOf(slot)));
    absl::Status read =
        ReadElements(**state, *index, static_cast<int>(s), OffsetOf(slot, *part), tensor.view(-1));
    if (!read.ok()) return read;
    result.emplace(slot.name, is_step ? StepTensor(tensor.item<double>()) : tensor);
  }
  return result;
}

absl::Status WriteState(OwnerLink& owner, const ParameterOwners& owners, Rank rank,
                        const at::Tensor& parameter, const StateSlots& given,
                        absl::Duration timeout) {
  const absl::StatusOr<int> index = owners.IndexOf(parameter);
  if (!index.ok()) return index.status();
  const absl::StatusOr<StateAccess*> state = owner.state(timeout);
  if (!state.ok()) return state.status();
  const absl::optional<OwnedPart> part = owners.PartOf(*index, rank);
  if (!part.has_value()) {
    if (given.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank, " owns nothing of parameter ", *index,
        " and keeps no state of it: set it on the ranks that owner_of() names, and there alone"));
  }
  const c10::InferenceMode normal_tensors(false);
  const at::NoGradGuard no_grad;
  const std::vector<ParameterSlot> slots = (*state)->Slots(*index);
  if (absl::Status status = Check(slots, *part, given); !status.ok()) return status;
  // All that takes memory in proportion to a slot comes before the first write.
  std::vector<at::Tensor> flat;
  for (const ParameterSlot& slot : slots) {
    flat.push_back(given.at(slot.name).detach().reshape(-1));
  }
  for (size_t s = 0; s < slots.size(); ++s) {
    absl::Status written =
        WriteElements(**state, *index, static_cast<int>(s), OffsetOf(slots[s], *part), flat[s]);
    if (!written.ok()) return written;
  }
  return absl::OkStatus();
}

}  // namespace optshard

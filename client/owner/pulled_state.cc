#include "client/owner/pulled_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "client/owner/parameter_state.h"

namespace optshard {
namespace {

constexpr uintptr_t kHugePage = 2 << 20;

// The format in which its values come.
StateFormat FormatOf(const ParameterSlot& slot) {
  if (slot.is_scalar()) return StateFormat::kFloat64;
  return IsCoded(slot.format) ? StateFormat::kFloat32 : slot.format;
}

// First touches of new memory take longer than the copy: 2 MiB at a time they are few.
void AdviseHugePages(const at::Tensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (begin + tensor.nbytes()) / kHugePage * kHugePage;
  // Without huge pages it is only slower.
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

}  // namespace

PulledState::PulledState(const StateLayout& layout) : layout_(layout) {
  absl::MutexLock lock(&mutex_);
  entries_.resize(layout_.parameter_count());
  for (int p = 0; p < layout_.parameter_count(); ++p) entries_[p].slots = layout_.Slots(p);
}

const std::vector<int64_t>& PulledState::ShapeOf(int parameter, const ParameterSlot& slot) const {
  return slot.shape.has_value() ? *slot.shape : layout_.parameter(parameter).shape;
}

int64_t PulledState::expected_bytes() const {
  int64_t bytes = 0;
  for (int p = 0; p < layout_.parameter_count(); ++p) {
    const std::vector<OwnedRange>& ranges = layout_.owners->OwnersOf(p);
    const int64_t owners = layout_.replicated ? 1 : static_cast<int64_t>(ranges.size());
    for (const ParameterSlot& slot : layout_.Slots(p)) {
      const int64_t elements = slot.is_scalar() ? owners : ElementsOf(ShapeOf(p, slot));
      bytes += elements * ElementBytes(FormatOf(slot));
    }
  }
  return bytes;
}

absl::Status PulledState::TakeNumber(const Piece& piece, absl::Span<const Bytes> values) {
  double number = 0;
  char* to = reinterpret_cast<char*>(&number);
  for (const Bytes& part : values) {
    std::memcpy(to, part.data, part.size);
    to += part.size;
  }
  absl::MutexLock lock(&mutex_);
  entries_[piece.parameter].numbers[std::string(piece.slot)] = number;
  return absl::OkStatus();
}

at::Tensor PulledState::TensorOf(int parameter, const ParameterSlot& slot) {
  at::Tensor& tensor = entries_[parameter].tensors[slot.name];
  if (!tensor.defined()) {
    const c10::InferenceMode normal_tensors(false);
    const at::NoGradGuard no_grad;
    tensor = at::empty(ShapeOf(parameter, slot), at::TensorOptions(TypeOf(slot)));
    AdviseHugePages(tensor);
  }
  return tensor;
}

absl::Status PulledState::Take(const Piece& piece, absl::Span<const Bytes> values) {
  const auto unexpected = [&piece] {
    return absl::InternalError(absl::StrFormat(
        "%d elements from %d on of slot \"%s\" of parameter %d, format %s, are not what this "
        "optimizer "
        "keeps",
        piece.elements, piece.offset_elements, piece.slot, piece.parameter, NameOf(piece.format)));
  };
  if (piece.parameter >= layout_.parameter_count()) return unexpected();
  at::Tensor tensor;
  try {
    absl::ReleasableMutexLock lock(&mutex_);
    Entry& entry = entries_[piece.parameter];
    const auto slot =
        std::find_if(entry.slots.begin(), entry.slots.end(),
                     [&](const ParameterSlot& each) { return each.name == piece.slot; });
    if (slot == entry.slots.end() || piece.format != FormatOf(*slot)) return unexpected();
    const int64_t all = slot->is_scalar() ? 1 : ElementsOf(ShapeOf(piece.parameter, *slot));
    if (piece.elements > all || piece.offset_elements > all - piece.elements) return unexpected();
    if (slot->is_scalar()) {
      if (piece.elements != 1) return unexpected();
      lock.Release();
      return TakeNumber(piece, values);
    }
    if (entry.numbers[kStepSlot] == 0) return absl::OkStatus();
    tensor = TensorOf(piece.parameter, *slot);
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(error.what());
  }
  char* to = static_cast<char*>(tensor.mutable_data_ptr()) +
             piece.offset_elements * ElementBytes(piece.format);
  for (const Bytes& part : values) {
    std::memcpy(to, part.data, part.size);
    to += part.size;
  }
  return absl::OkStatus();
}

std::map<int64_t, StateValues> PulledState::Finish() {
  const c10::InferenceMode normal_tensors(false);
  const at::NoGradGuard no_grad;
  absl::MutexLock lock(&mutex_);
  std::map<int64_t, StateValues> state;
  for (int p = 0; p < layout_.parameter_count(); ++p) {
    Entry& entry = entries_[p];
    const double count = entry.numbers[kStepSlot];
    if (count == 0) continue;
    for (const ParameterSlot& slot : entry.slots) {
      if (slot.kind == SlotKind::kStep) {
        state[p][slot.name] = StepTensor(count);
      } else if (slot.is_scalar()) {
        state[p][slot.name] =
            at::full({}, entry.numbers[slot.name], at::TensorOptions(TypeOf(slot)));
      } else {
        // One without elements has not come.
        state[p][slot.name] = TensorOf(p, slot);
      }
    }
    entry.tensors.clear();
  }
  return state;
}

}  // namespace optshard

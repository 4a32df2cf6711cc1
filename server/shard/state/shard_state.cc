#include "server/shard/state/shard_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/block_code.h"
#include "common/dtype.h"
#include "common/optimizer_spec.h"
#include "common/state_format.h"

namespace optshard {
namespace {

bool IsCorrection(double value) {
  return value >= std::numeric_limits<int8_t>::min() &&
         value <= std::numeric_limits<int8_t>::max() && value == std::floor(value);
}

}  // namespace

KeptParts ShardState::kept() const { return {options_.rank, options_.shape, options_.store}; }

std::vector<ParameterSlot> ShardState::Slots(int parameter) const {
  const OptimizerSpec& spec = options_.shape->spec();
  return SlotsOfParameter(spec.space.parameter(parameter),
                          (*options_.groups)[spec.space.group_of(parameter)], spec.state);
}

absl::Status ShardState::CheckParameter(int parameter) const {
  const int parameters = options_.shape->space().parameter_count();
  if (parameter >= 0 && parameter < parameters) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("no parameter %d: the optimizer has 0 to %d", parameter, parameters - 1));
}

absl::StatusOr<ParameterSlot> ShardState::Find(int parameter, int slot) const {
  absl::Status known = CheckParameter(parameter);
  if (!known.ok()) return known;
  std::vector<ParameterSlot> slots = Slots(parameter);
  if (slot < 0 || slot >= static_cast<int>(slots.size())) {
    return absl::InvalidArgumentError(absl::StrFormat("parameter %d has no slot %d: it has 0 to %d",
                                                      parameter, slot, slots.size() - 1));
  }
  return std::move(slots[slot]);
}

absl::StatusOr<ParameterSlot> ShardState::Find(int parameter, int slot, int64_t offset_elements,
                                               int64_t elements) const {
  absl::StatusOr<ParameterSlot> found = Find(parameter, slot);
  if (!found.ok()) return found;
  const absl::Status kept_here = kept().Check(parameter, *found, offset_elements, elements);
  if (!kept_here.ok()) return absl::InvalidArgumentError(kept_here.message());
  if (found->is_scalar() && elements != 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("slot \"%s\" of parameter %d is one number; %d were asked for", found->name,
                        parameter, elements));
  }
  return found;
}

absl::Status ShardState::CheckValues(int parameter, const ParameterSlot& slot,
                                     int64_t offset_elements,
                                     absl::Span<const double> values) const {
  const std::string what = absl::StrCat("slot \"", slot.name, "\" of parameter ", parameter, " ");
  if (slot.kind == SlotKind::kStep && !IsStepCount(values[0])) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "is given ", values[0], ", expected 0, 1, 2, ..."));
  }
  if (slot.kind == SlotKind::kCorrections) {
    const auto wrong = std::find_if_not(values.begin(), values.end(), IsCorrection);
    if (wrong == values.end()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(what, "is given ", *wrong, ", expected whole numbers from -128 to 127"));
  }
  if (slot.kind != SlotKind::kElements || !IsCoded(slot.format)) return absl::OkStatus();
  const auto elements = static_cast<int64_t>(values.size());
  const bool reaches_the_end = !kept().Check(parameter, slot, offset_elements, elements + 1).ok();
  if (offset_elements % kCodeGrid == 0 && (elements % kCodeGrid == 0 || reaches_the_end)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%sis kept in blocks of 8 bits; %d elements from %d on are not whole blocks of %d", what,
      elements, offset_elements, kCodeGrid));
}

absl::Status ShardState::Read(int parameter, int slot, int64_t offset_elements,
                              absl::Span<double> out) {
  const absl::StatusOr<ParameterSlot> found =
      Find(parameter, slot, offset_elements, static_cast<int64_t>(out.size()));
  if (!found.ok()) return found.status();
  if (options_.store->ledger().progress().outcome == StepOutcome::kTorn) {
    return absl::DataLossError(
        absl::StrFormat("the optimizer state of rank %d is that of no step: %s", options_.rank,
                        RemedyOf(options_.store->ledger().replacing())));
  }
  switch (found->kind) {
    case SlotKind::kElements:
    case SlotKind::kCorrections: {
      const auto read = options_.store->TryRead(parameter, found->index, offset_elements, out);
      if (!read.ok()) return read.status();
      // Nobody writes meanwhile: the first try fails only where a write never ended.
      if (!read->has_value()) {
        return absl::DataLossError(absl::StrFormat(
            "slot \"%s\" of parameter %d is torn at rank %d: restart from a checkpoint",
            found->name, parameter, options_.rank));
      }
      break;
    }
    case SlotKind::kScalar:
      out[0] = options_.store->scalar_slots(parameter)[found->index];
      break;
    case SlotKind::kStep:
      out[0] = static_cast<double>(options_.store->step_count(parameter));
      break;
  }
  return absl::OkStatus();
}

absl::Status ShardState::Write(int parameter, int slot, int64_t offset_elements,
                               absl::Span<const double> values) {
  return WriteTo(*options_.store, parameter, slot, offset_elements, values);
}

absl::Status ShardState::WriteTo(ShardStore& store, int parameter, int slot,
                                 int64_t offset_elements, absl::Span<const double> values) const {
  const absl::StatusOr<ParameterSlot> found =
      Find(parameter, slot, offset_elements, static_cast<int64_t>(values.size()));
  if (!found.ok()) return found.status();
  absl::Status valid = CheckValues(parameter, *found, offset_elements, values);
  if (!valid.ok()) return valid;
  if (!found->is_scalar()) return store.Write(parameter, found->index, offset_elements, values);
  StepNumber count = store.step_count(parameter);
  ScalarSlots scalars = store.scalar_slots(parameter);
  if (found->kind == SlotKind::kStep) {
    count = static_cast<StepNumber>(values[0]);
  } else {
    scalars[found->index] = values[0];
  }
  store.WriteCount(parameter, count, scalars);
  return absl::OkStatus();
}

absl::Status ShardState::BeginStaging(Replacing what) {
  if (options_.store->ledger().has_no_step() && what != Replacing::kAll) {
    return absl::DataLossError(absl::StrFormat(
        "rank %d: a step was applied in part, or a checkpoint was loaded in part: the parameters "
        "are those of no step; load a checkpoint on all ranks",
        options_.rank));
  }
  staged_.reset();
  absl::StatusOr<std::unique_ptr<StagedState>> staged =
      StagedState::Create(*options_.store, options_.rank, what, options_.budget);
  if (!staged.ok()) return staged.status();
  staged_ = *std::move(staged);
  return absl::OkStatus();
}

absl::Status ShardState::CheckStaged() const {
  if (staged_ != nullptr) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrFormat("the owner of rank %d stages no state, perhaps since it has succeeded one "
                      "that did; begin with that again",
                      options_.rank));
}

absl::Status ShardState::Stage(int parameter, int slot, int64_t offset_elements,
                               absl::Span<const double> values) {
  absl::Status staging = CheckStaged();
  if (!staging.ok()) return staging;
  return WriteTo(staged_->store(), parameter, slot, offset_elements, values);
}

absl::Status ShardState::StageBytes(int parameter, int slot, int64_t offset_elements,
                                    absl::Span<const char> values) {
  const auto bytes = static_cast<int64_t>(values.size());
  const absl::StatusOr<StagedRange> range = FindStaged(parameter, slot, offset_elements, bytes);
  if (!range.ok()) return range.status();
  if (range->of_parameter) {
    staged_->WriteParameter(parameter, offset_elements, range->elements, values.data());
  } else {
    staged_->store().WriteBytes(parameter, range->slot, offset_elements, range->elements,
                                values.data());
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<char>> ShardState::StagedMemory(int parameter, int slot,
                                                          int64_t offset_elements, int64_t bytes) {
  const absl::StatusOr<StagedRange> range = FindStaged(parameter, slot, offset_elements, bytes);
  if (!range.ok()) return range.status();
  char* const memory =
      range->of_parameter
          ? staged_->ParameterMemory(parameter, offset_elements, range->elements)
          : staged_->store().BytesAt(parameter, range->slot, offset_elements, range->elements);
  return absl::MakeSpan(memory, memory == nullptr ? 0 : static_cast<size_t>(bytes));
}

absl::StatusOr<ShardState::StagedRange> ShardState::FindStaged(int parameter, int slot,
                                                               int64_t offset_elements,
                                                               int64_t bytes) const {
  absl::Status staging = CheckStaged();
  if (!staging.ok()) return staging;
  return slot == kParameterValues ? FindStagedParameter(parameter, offset_elements, bytes)
                                  : FindStagedSlot(parameter, slot, offset_elements, bytes);
}

absl::StatusOr<ShardState::StagedRange> ShardState::FindStagedSlot(int parameter, int slot,
                                                                   int64_t offset_elements,
                                                                   int64_t bytes) const {
  const absl::StatusOr<ParameterSlot> known = Find(parameter, slot);
  if (!known.ok()) return known.status();
  const auto size = static_cast<int64_t>(SizeOf(known->dtype()));
  if (known->kind != SlotKind::kElements || IsCoded(known->format) || bytes % size != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d bytes are to be staged for slot \"%s\" of parameter %d; expected whole elements of %d "
        "bytes of a slot that has an element for each of the parameter, and no codes",
        bytes, known->name, parameter, size));
  }
  const int64_t elements = bytes / size;
  const absl::StatusOr<ParameterSlot> found = Find(parameter, slot, offset_elements, elements);
  if (!found.ok()) return found.status();
  return StagedRange{false, found->index, elements};
}

absl::StatusOr<ShardState::StagedRange> ShardState::FindStagedParameter(int parameter,
                                                                        int64_t offset_elements,
                                                                        int64_t bytes) const {
  absl::Status known = CheckParameter(parameter);
  if (!known.ok()) return known;
  const auto size =
      static_cast<int64_t>(SizeOf(options_.shape->space().parameter(parameter).dtype));
  const int64_t elements = bytes / size;
  if (staged_->what() != Replacing::kAll || bytes % size != 0 ||
      !options_.store->Owns(parameter, offset_elements, elements)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d bytes for parameter %d, from element %d on, are to be staged at rank %d; expected, "
        "where the parameters are staged too, whole elements of %d bytes that the rank owns",
        bytes, parameter, offset_elements, options_.rank, size));
  }
  return StagedRange{true, 0, elements};
}

absl::Status ShardState::DropStaged() {
  staged_.reset();
  return absl::OkStatus();
}

}  // namespace optshard

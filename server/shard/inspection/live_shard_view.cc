#include "server/shard/inspection/live_shard_view.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/checked_math.h"
#include "server/shard/state/slot_memory.h"

namespace optshard {
namespace {

// A reader tries this often until no step is writing what it reads; the pauses grow from a
// microsecond to a few milliseconds, in all about a second and a half.
constexpr int kReadAttempts = 400;

void PauseBeforeRetry(int attempt) {
  absl::SleepFor(absl::Microseconds(1 << std::min(attempt / 4, 12)));
}

template <typename TryOnce>
auto Retry(const TryOnce& try_once) {
  auto result = try_once();
  for (int attempt = 0; !result.has_value() && attempt < kReadAttempts; ++attempt) {
    PauseBeforeRetry(attempt);
    result = try_once();
  }
  return result;
}

}  // namespace

LiveShardView::LiveShardView(Options options) : options_(std::move(options)) {
  int32_t last = -1;
  for (const Slice& slice : slices()) {
    if (slice.parameter != last) ++owned_parameters_;
    last = slice.parameter;
    owned_elements_ += slice.elements;
  }
}

ShardDescription LiveShardView::Describe() const {
  ShardDescription description;
  description.member = options_.member;
  description.generation = options_.plan->generation;
  description.world_size = options_.plan->world_size;
  description.gradient_mode = options_.gradient_mode;
  description.policy = options_.plan->policy;
  description.progress = options_.board->progress();
  description.failure = options_.board->failure();
  description.owned_parameters = owned_parameters_;
  description.owned_elements = owned_elements_;
  description.state_bytes = options_.store->state_bytes();
  description.bucket_count = options_.bucket_count;
  for (Hyperparameters& values : options_.board->hyperparameters()) {
    const UpdateRule& rule = *(*options_.groups)[description.groups.size()].rule;
    description.groups.push_back({rule.spec().name, std::move(values)});
  }
  return description;
}

std::vector<OwnedSlice> LiveShardView::Slices(int64_t first, int64_t count) const {
  std::vector<OwnedSlice> result;
  const int64_t end = std::min(SaturatingAdd(first, count), static_cast<int64_t>(slices().size()));
  for (int64_t i = std::max<int64_t>(first, 0); i < end; ++i) {
    const Slice& slice = slices()[i];
    const ParameterSpec& parameter = options_.space->parameter(slice.parameter);
    OwnedSlice owned;
    owned.parameter = slice.parameter;
    owned.name = parameter.name;
    owned.shape = parameter.shape;
    owned.dtype = parameter.dtype;
    owned.group = options_.space->group_of(slice.parameter);
    owned.offset_elements = slice.offset_elements;
    owned.elements = slice.elements;
    owned.step = options_.store->step_count(slice.parameter);
    owned.slots = SlotNames(slice.parameter);
    owned.scalar_slots = ScalarSlotNames(slice.parameter);
    owned.state_bytes =
        StateBytes(options_.state, parameter, options_.slots[owned.group], slice.elements);
    result.push_back(std::move(owned));
  }
  return result;
}

absl::StatusOr<SlotRead> LiveShardView::ReadSlot(int32_t parameter, absl::string_view slot,
                                                 int64_t offset_elements,
                                                 absl::Span<double> out) const {
  if (parameter < 0 || parameter >= options_.space->parameter_count()) {
    return absl::NotFoundError(absl::StrFormat("no parameter %d: the optimizer has 0 to %d",
                                               parameter, options_.space->parameter_count() - 1));
  }
  const int group = options_.space->group_of(parameter);
  const std::vector<std::string> names = SlotNames(parameter);
  if (std::find(names.begin(), names.end(), slot) == names.end()) {
    return absl::NotFoundError(absl::StrFormat(
        "parameter %d \"%s\" has no slot \"%s\"; rule %s keeps: %s", parameter,
        options_.space->parameter(parameter).name, slot, rule_of(parameter).spec().name,
        names.empty() ? "none" : absl::StrJoin(names, ", ")));
  }
  absl::Status readable = CheckReadable();
  if (!readable.ok()) return readable;

  const auto elements = static_cast<int64_t>(out.size());
  absl::optional<StepNumber> step;
  SlotRead result;
  const absl::optional<int> scalar = ScalarSlot(parameter, slot);
  if (slot == kStepSlot || scalar.has_value()) {
    absl::Status owned = CheckOwned(parameter, 0, 0);
    if (!owned.ok()) return owned;
    if (offset_elements < 0 || offset_elements > 1 || elements > 1 - offset_elements) {
      return absl::OutOfRangeError(
          absl::StrFormat("slot \"%s\" has 1 element; %d elements from %d on were asked for", slot,
                          elements, offset_elements));
    }
    const auto read = Retry([&] { return options_.store->TryReadStepCount(parameter); });
    if (read.has_value()) {
      if (!out.empty()) {
        out[0] =
            scalar.has_value() ? read->scalar_slots[*scalar] : static_cast<double>(read->count);
      }
      if (scalar.has_value()) result.format = StateFormat::kFloat64;
      step = read->step;
    }
  } else {
    absl::Status owned = CheckOwned(parameter, offset_elements, elements);
    if (!owned.ok()) return owned;
    int index = ShardStore::kMaster;
    if (slot == kCorrectionSlot) {
      index = ShardStore::kCorrection;
      result.format = StateFormat::kInt8;
    } else if (slot != kMasterSlot) {
      const auto& specs = options_.slots[group];
      const auto spec = std::find_if(specs.begin(), specs.end(),
                                     [&](const Slot& known) { return known.name == slot; });
      index = static_cast<int>(spec - specs.begin());
      const ParameterSpec& kept = options_.space->parameter(parameter);
      result.format = options_.state.SlotFormat(kept.dtype, kept.elements());
    }
    step = Retry([&] { return options_.store->TryRead(parameter, index, offset_elements, out); });
  }
  if (!step.has_value()) {
    return absl::AbortedError(absl::StrFormat(
        "steps kept overtaking the copy of %d elements from %d on of \"%s\" of parameter %d; ask "
        "again, or for fewer elements",
        elements, offset_elements, slot, parameter));
  }
  // The step may have been torn meanwhile.
  readable = CheckReadable();
  if (!readable.ok()) return readable;
  result.step = *step;
  return result;
}

std::vector<TimelineSpan> LiveShardView::Timeline() const { return options_.timeline->Read(); }

const std::vector<Slice>& LiveShardView::slices() const {
  return options_.plan->partition.slices[options_.member.rank];
}

const UpdateRule& LiveShardView::rule_of(int parameter) const {
  return *(*options_.groups)[options_.space->group_of(parameter)].rule;
}

std::vector<std::string> LiveShardView::SlotNames(int parameter) const {
  std::vector<std::string> names;
  const int group = options_.space->group_of(parameter);
  for (const Slot& slot : options_.slots[group]) names.push_back(slot.name);
  if (options_.state.HasMaster(options_.space->parameter(parameter).dtype)) {
    names.emplace_back(kMasterSlot);
  }
  if (options_.state.HasCorrection(options_.space->parameter(parameter).dtype)) {
    names.emplace_back(kCorrectionSlot);
  }
  for (std::string& name : ScalarSlotNames(parameter)) names.push_back(std::move(name));
  return names;
}

std::vector<std::string> LiveShardView::ScalarSlotNames(int parameter) const {
  const RuleSpec& rule = rule_of(parameter).spec();
  std::vector<std::string> names;
  for (const ScalarSlotSpec& slot : rule.scalar_slots) names.push_back(slot.name);
  if (rule.exports_step) names.emplace_back(kStepSlot);
  return names;
}

absl::optional<int> LiveShardView::ScalarSlot(int parameter, absl::string_view name) const {
  const std::vector<ScalarSlotSpec>& slots = rule_of(parameter).spec().scalar_slots;
  for (size_t k = 0; k < slots.size(); ++k) {
    if (slots[k].name == name) return static_cast<int>(k);
  }
  return absl::nullopt;
}

absl::Status LiveShardView::CheckReadable() const {
  const StepProgress progress = options_.board->progress();
  if (!IsOpen(progress.outcome)) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "the state of rank %d is not given out: step %d is %s (%s); restart from a checkpoint",
      options_.member.rank, progress.finished + 1, NameOf(progress.outcome),
      options_.board->failure().message()));
}

absl::Status LiveShardView::CheckOwned(int32_t parameter, int64_t offset_elements,
                                       int64_t elements) const {
  std::vector<std::string> ranges;
  for (const Slice& slice : slices()) {
    if (slice.parameter != parameter) continue;
    ranges.push_back(
        absl::StrFormat("[%d, %d)", slice.offset_elements, slice.offset_elements + slice.elements));
  }
  const ParameterSpec& spec = options_.space->parameter(parameter);
  if (!ranges.empty() && offset_elements >= 0 && offset_elements <= spec.elements() &&
      options_.store->Owns(parameter, offset_elements, elements)) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(
      absl::StrFormat("%d elements from %d on of parameter %d \"%s\" are not all owned by rank %d, "
                      "which owns %s of "
                      "it",
                      elements, offset_elements, parameter, spec.name, options_.member.rank,
                      ranges.empty() ? "nothing" : absl::StrJoin(ranges, ", ")));
}

}  // namespace optshard

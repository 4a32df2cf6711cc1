#include "server/shard/inspection/live_shard_view.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/checked_math.h"
#include "server/shard/state/kept_parts.h"
#include "server/shard/state/slot_memory.h"
#include "server/update/update_rule.h"

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
    owned.gradient_dtype = parameter.gradient_dtype();
    owned.group = options_.space->group_of(slice.parameter);
    owned.offset_elements = slice.offset_elements;
    owned.elements = slice.elements;
    owned.step = options_.store->step_count(slice.parameter);
    for (ParameterSlot& slot : SlotsOf(slice.parameter)) {
      if (slot.shape.has_value()) owned.slot_shapes[slot.name] = *std::move(slot.shape);
      owned.slots.push_back(std::move(slot.name));
    }
    const GroupUpdate& group = group_of(slice.parameter);
    owned.state_bytes = StateBytes(options_.state, parameter,
                                   group.rule->Slots(group.hyperparameters), slice.elements);
    result.push_back(std::move(owned));
  }
  return result;
}

absl::StatusOr<SlotRead> LiveShardView::ReadSlot(int32_t parameter, absl::string_view name,
                                                 int64_t offset_elements,
                                                 absl::Span<double> out) const {
  if (parameter < 0 || parameter >= options_.space->parameter_count()) {
    return absl::NotFoundError(absl::StrFormat("no parameter %d: the optimizer has 0 to %d",
                                               parameter, options_.space->parameter_count() - 1));
  }
  const std::vector<ParameterSlot> slots = SlotsOf(parameter);
  const auto found = std::find_if(slots.begin(), slots.end(),
                                  [&](const ParameterSlot& known) { return known.name == name; });
  if (found == slots.end()) {
    const auto append = [](std::string* out, const ParameterSlot& known) { *out += known.name; };
    return absl::NotFoundError(absl::StrFormat(
        "parameter %d \"%s\" has no slot \"%s\"; rule %s keeps: %s", parameter,
        options_.space->parameter(parameter).name, name, group_of(parameter).rule->spec().name,
        slots.empty() ? "none" : absl::StrJoin(slots, ", ", append)));
  }
  const ParameterSlot& slot = *found;
  absl::Status readable = CheckReadable();
  if (!readable.ok()) return readable;

  const auto elements = static_cast<int64_t>(out.size());
  absl::optional<StepNumber> step;
  const KeptParts kept = {options_.member.rank, options_.space, &slices(), options_.store};
  absl::Status kept_here = kept.Check(parameter, slot, offset_elements, elements);
  if (!kept_here.ok()) return kept_here;
  if (slot.is_scalar()) {
    const auto read = Retry([&] { return options_.store->TryReadStepCount(parameter); });
    if (read.has_value()) {
      if (!out.empty()) {
        out[0] = slot.kind == SlotKind::kStep ? static_cast<double>(read->count)
                                              : read->scalar_slots[slot.index];
      }
      step = read->step;
    }
  } else {
    step =
        Retry([&] { return options_.store->TryRead(parameter, slot.index, offset_elements, out); });
  }
  if (!step.has_value()) {
    return absl::AbortedError(absl::StrFormat(
        "steps kept overtaking the copy of %d elements from %d on of \"%s\" of parameter %d; ask "
        "again, or for fewer elements",
        elements, offset_elements, name, parameter));
  }
  // The step may have been torn meanwhile.
  readable = CheckReadable();
  if (!readable.ok()) return readable;
  return SlotRead{*step, slot.format};
}

std::vector<TimelineSpan> LiveShardView::Timeline() const { return options_.timeline->Read(); }

const std::vector<Slice>& LiveShardView::slices() const {
  return options_.plan->partition.slices[options_.member.rank];
}

const GroupUpdate& LiveShardView::group_of(int parameter) const {
  return (*options_.groups)[options_.space->group_of(parameter)];
}

std::vector<ParameterSlot> LiveShardView::SlotsOf(int parameter) const {
  const GroupUpdate& group = group_of(parameter);
  std::vector<ParameterSlot> slots =
      SlotsOfParameter(options_.space->parameter(parameter), group, options_.state);
  if (!group.rule->spec().exports_step) slots.pop_back();
  return slots;
}

absl::Status LiveShardView::CheckReadable() const {
  const StepProgress progress = options_.board->progress();
  if (!IsOpen(progress.outcome)) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "the state of rank %d is not given out: step %d is %s (%s); restart from a checkpoint",
      options_.member.rank, progress.finished + 1, NameOf(progress.outcome),
      options_.board->failure().message()));
}

}  // namespace optshard

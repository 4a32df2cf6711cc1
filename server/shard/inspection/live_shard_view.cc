#include "server/shard/inspection/live_shard_view.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/checked_math.h"
#include "common/optimizer_spec.h"
#include "server/shard/saving/checkpoint_description.h"
#include "server/shard/snapshot/store_snapshot.h"
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

// Until `replaced` says that other values count from now on.
template <typename TryOnce, typename Replaced>
auto Retry(const TryOnce& try_once, const Replaced& replaced) {
  auto result = try_once();
  for (int attempt = 0; !result.has_value() && attempt < kReadAttempts && !replaced(); ++attempt) {
    PauseBeforeRetry(attempt);
    result = try_once();
  }
  return result;
}

const GroupUpdate& GroupOf(const LiveShardView::Shown& shown, int parameter) {
  return (*shown.groups)[shown.shape->space().group_of(parameter)];
}

// What ReadSlot serves of the parameter: "step" only where PyTorch keeps it too.
std::vector<ParameterSlot> SlotsOf(const LiveShardView::Shown& shown, int parameter) {
  const OptimizerSpec& spec = shown.shape->spec();
  const GroupUpdate& group = GroupOf(shown, parameter);
  std::vector<ParameterSlot> slots =
      SlotsOfParameter(spec.space.parameter(parameter), group, spec.state);
  if (!group.rule->spec().exports_step) slots.pop_back();
  return slots;
}

}  // namespace

LiveShardView::LiveShardView(Options options, Shown shown)
    : options_(std::move(options)), shown_(std::make_shared<const Shown>(std::move(shown))) {}

void LiveShardView::Show(Shown shown) {
  auto next = std::make_shared<const Shown>(std::move(shown));
  absl::MutexLock lock(&mutex_);
  shown_.swap(next);
}

std::shared_ptr<const LiveShardView::Shown> LiveShardView::shown() const {
  absl::MutexLock lock(&mutex_);
  return shown_;
}

ShardDescription LiveShardView::Describe() const {
  const std::shared_ptr<const Shown> shown = this->shown();
  const Plan& plan = shown->shape->plan();
  ShardDescription description;
  description.member = options_.member;
  description.generation = plan.generation;
  description.world_size = plan.world_size;
  description.gradient_mode = shown->shape->spec().gradient_mode;
  description.policy = plan.policy;
  description.progress = options_.board->progress();
  description.failure = options_.board->failure();
  int32_t last = -1;
  for (const Slice& slice : shown->shape->slices(options_.member.rank)) {
    if (slice.parameter != last) ++description.owned_parameters;
    last = slice.parameter;
    description.owned_elements += slice.elements;
  }
  description.state_bytes = shown->store->state_bytes();
  description.snapshot_memory_bytes = shown->snapshot_memory->bytes();
  description.snapshot_used_bytes = shown->snapshot_memory->used_bytes();
  description.bucket_count = static_cast<int>(shown->store->own_buckets().size());
  description.activity = Activity();
  description.groups = Rules(*shown);
  return description;
}

std::vector<GroupRule> LiveShardView::Rules(const Shown& shown) const {
  std::vector<GroupRule> rules;
  for (Hyperparameters& values : options_.board->hyperparameters()) {
    // The board may be a generation ahead.
    if (rules.size() == shown.groups->size()) break;
    rules.push_back({(*shown.groups)[rules.size()].rule->spec().name, std::move(values)});
  }
  return rules;
}

std::vector<OwnedSlice> LiveShardView::Slices(int64_t first, int64_t count) const {
  const std::shared_ptr<const Shown> shown = this->shown();
  const auto size = static_cast<int64_t>(shown->shape->slices(options_.member.rank).size());
  return SlicesOf(*shown, std::max<int64_t>(first, 0), std::min(SaturatingAdd(first, count), size));
}

std::vector<OwnedSlice> LiveShardView::SlicesOf(int32_t parameter) const {
  const std::shared_ptr<const Shown> shown = this->shown();
  const std::vector<Slice>& slices = shown->shape->slices(options_.member.rank);
  const auto first =
      std::partition_point(slices.begin(), slices.end(),
                           [parameter](const Slice& slice) { return slice.parameter < parameter; });
  const auto end = std::find_if(first, slices.end(), [parameter](const Slice& slice) {
    return slice.parameter != parameter;
  });
  return SlicesOf(*shown, first - slices.begin(), end - slices.begin());
}

std::vector<OwnedSlice> LiveShardView::SlicesOf(const Shown& shown, int64_t first,
                                                int64_t end) const {
  const OptimizerSpec& spec = shown.shape->spec();
  const std::vector<Slice>& slices = shown.shape->slices(options_.member.rank);
  std::vector<OwnedSlice> result;
  for (int64_t i = first; i < end; ++i) {
    const Slice& slice = slices[i];
    const ParameterSpec& parameter = spec.space.parameter(slice.parameter);
    OwnedSlice owned;
    owned.parameter = slice.parameter;
    owned.name = parameter.name;
    owned.shape = parameter.shape;
    owned.dtype = parameter.dtype;
    owned.gradient_dtype = parameter.gradient_dtype();
    owned.group = spec.space.group_of(slice.parameter);
    owned.offset_elements = slice.offset_elements;
    owned.elements = slice.elements;
    owned.step = shown.store->step_count(slice.parameter);
    for (ParameterSlot& slot : SlotsOf(shown, slice.parameter)) {
      if (slot.shape.has_value()) owned.slot_shapes[slot.name] = *std::move(slot.shape);
      owned.slots.push_back(std::move(slot.name));
    }
    const GroupUpdate& group = GroupOf(shown, slice.parameter);
    owned.state_bytes =
        StateBytes(spec.state, parameter, group.rule->Slots(group.hyperparameters), slice.elements);
    result.push_back(std::move(owned));
  }
  return result;
}

absl::StatusOr<SlotRead> LiveShardView::ReadSlot(int32_t parameter, absl::string_view name,
                                                 int64_t offset_elements,
                                                 absl::Span<double> out) const {
  while (true) {
    const std::shared_ptr<const Shown> shown = this->shown();
    absl::StatusOr<SlotRead> read = ReadSlotOf(shown, parameter, name, offset_elements, out);
    // Nobody steps the former generation's store any more.
    if (!absl::IsAborted(read.status()) || shown == this->shown()) return read;
  }
}

absl::StatusOr<SlotRead> LiveShardView::ReadSlotOf(const std::shared_ptr<const Shown>& shown,
                                                   int32_t parameter, absl::string_view name,
                                                   int64_t offset_elements,
                                                   absl::Span<double> out) const {
  const ParameterSpace& space = shown->shape->space();
  const auto replaced = [&] { return shown != this->shown(); };
  if (parameter < 0 || parameter >= space.parameter_count()) {
    return absl::NotFoundError(absl::StrFormat("no parameter %d: the optimizer has 0 to %d",
                                               parameter, space.parameter_count() - 1));
  }
  const std::vector<ParameterSlot> slots = SlotsOf(*shown, parameter);
  const auto found = std::find_if(slots.begin(), slots.end(),
                                  [&](const ParameterSlot& known) { return known.name == name; });
  if (found == slots.end()) {
    const auto append = [](std::string* out, const ParameterSlot& known) { *out += known.name; };
    return absl::NotFoundError(absl::StrFormat(
        "parameter %d \"%s\" has no slot \"%s\"; rule %s keeps: %s", parameter,
        space.parameter(parameter).name, name, GroupOf(*shown, parameter).rule->spec().name,
        slots.empty() ? "none" : absl::StrJoin(slots, ", ", append)));
  }
  const ParameterSlot& slot = *found;
  absl::Status readable = CheckReadable();
  if (!readable.ok()) return readable;

  const auto elements = static_cast<int64_t>(out.size());
  absl::optional<StepNumber> step;
  const KeptParts kept = {options_.member.rank, shown->shape, shown->store.get()};
  absl::Status kept_here = kept.Check(parameter, slot, offset_elements, elements);
  if (!kept_here.ok()) return kept_here;
  if (slot.is_scalar()) {
    const auto read = Retry([&] { return shown->store->TryReadStepCount(parameter); }, replaced);
    if (read.has_value()) {
      if (!out.empty()) {
        out[0] = slot.kind == SlotKind::kStep ? static_cast<double>(read->count)
                                              : read->scalar_slots[slot.index];
      }
      step = read->step;
    }
  } else {
    absl::Status failed;
    step = Retry(
        [&]() -> absl::optional<StepNumber> {
          const auto read = shown->store->TryRead(parameter, slot.index, offset_elements, out);
          failed = read.status();
          return read.ok() ? *read : absl::nullopt;
        },
        [&] { return !failed.ok() || replaced(); });
    if (!failed.ok()) return failed;
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

absl::StatusOr<std::unique_ptr<ShardSnapshot>> LiveShardView::OpenSnapshot(
    bool keep_copies, absl::Duration patience) const {
  const absl::Status readable = CheckReadable();
  if (!readable.ok()) return readable;
  const std::shared_ptr<const Shown> shown = this->shown();
  shown->snapshots->ForgetOld();  // they share its memory
  StoreSnapshotOptions snapshot;
  snapshot.shape = shown->shape;
  snapshot.groups = shown->groups;
  snapshot.rank = options_.member.rank;
  snapshot.store = shown->store;
  snapshot.contents.keep_copies = keep_copies;
  snapshot.memory = shown->snapshot_memory;
  return OpenStoreSnapshot(snapshot, patience);
}

absl::StatusOr<std::shared_ptr<AgreedSnapshots>> LiveShardView::agreed_snapshots() const {
  const absl::Status readable = CheckReadable();
  if (!readable.ok()) return readable;
  return shown()->snapshots;
}

absl::StatusOr<CheckpointManifest> LiveShardView::DescribeCheckpoint(bool is_model) const {
  const std::shared_ptr<const Shown> shown = this->shown();
  return optshard::DescribeCheckpoint(options_.member, *shown->shape, *shown->groups, Rules(*shown),
                                      is_model);
}

std::vector<TimelineSpan> LiveShardView::Timeline() const { return options_.timeline->Read(); }

absl::Status LiveShardView::CheckReadable() const {
  const StepProgress progress = options_.board->progress();
  const Replacing replacing = shown()->store->ledger().replacing();
  if (replacing != Replacing::kNothing) {
    return absl::DataLossError(absl::StrFormat("the state of rank %d is not given out: %s",
                                               options_.member.rank, RemedyOf(replacing)));
  }
  if (!IsOpen(progress.outcome)) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "the state of rank %d is not given out: step %d is %s (%s); restart from a checkpoint",
      options_.member.rank, progress.finished + 1, NameOf(progress.outcome),
      options_.board->failure().message()));
}

}  // namespace optshard

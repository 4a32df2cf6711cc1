#include "server/update/cuda/norm_scaled_launches.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "common/dtype.h"

namespace optshard {
namespace {

constexpr int64_t kLine = 64;

int64_t DirectionBytesOf(const UpdateTask& task) {
  const auto each = static_cast<int64_t>(SizeOf(task.coefficients->arithmetic));
  return (task.span.elements * each + kLine - 1) / kLine * kLine;
}

bool HasElements(const UpdateTask& task) { return task.span.elements > 0; }

}  // namespace

size_t NormScaledLaunches::Step::bytes() const {
  return table_.bytes() + sizes_.size() * sizeof(StepSize);
}

void NormScaledLaunches::Step::CopyTo(void* to, void* at) const {
  table_.CopyTo(to);
  std::vector<StepSize> sizes = sizes_;
  for (size_t set = 0; set < sizes.size(); ++set) {
    sizes[set].to = static_cast<char*>(at) + table_.CoefficientAt(set, minus_step_size_);
  }
  std::memcpy(static_cast<char*>(to) + table_.bytes(), sizes.data(),
              sizes.size() * sizeof(StepSize));
}

StepSizeArguments NormScaledLaunches::Step::SizesAt(const void* at,
                                                    const SumOfSquaresOnDevice* sums) const {
  StepSizeArguments arguments;
  arguments.steps =
      reinterpret_cast<const StepSize*>(static_cast<const char*>(at) + table_.bytes());
  arguments.count = static_cast<int32_t>(sizes_.size());
  arguments.is_double = table_.arithmetic() == DType::kFloat64;
  arguments.sums = sums;
  return arguments;
}

int64_t NormScaledLaunches::DirectionBytes(absl::Span<const UpdateTask> tasks) {
  int64_t bytes = 0;
  for (const UpdateTask& task : tasks) bytes += HasElements(task) ? DirectionBytesOf(task) : 0;
  return bytes;
}

std::vector<absl::Span<const UpdateTask>> NormScaledLaunches::Batches(
    absl::Span<const UpdateTask> tasks, int64_t most_bytes) {
  std::vector<absl::Span<const UpdateTask>> batches;
  while (!tasks.empty()) {
    size_t count = 1;
    int64_t bytes = DirectionBytes(tasks.first(1));
    for (; count < tasks.size(); ++count) {
      bytes += DirectionBytes(tasks.subspan(count, 1));
      if (bytes > most_bytes) break;
    }
    if (DirectionBytes(tasks.first(count)) > 0) batches.push_back(tasks.first(count));
    tasks.remove_prefix(count);
  }
  return batches;
}

absl::StatusOr<NormScaledLaunches> NormScaledLaunches::For(const NormScaledRule& rule,
                                                           absl::Span<const UpdateTask> tasks,
                                                           void* directions) {
  NormScaledLaunches launches;
  std::map<const Coefficients*, const Coefficients*> with_direction;
  std::map<const Coefficients*, StepSize> size_of;  // by the step's coefficients
  std::vector<UpdateTask> first;
  std::vector<UpdateTask> second;
  auto* next = static_cast<char*>(directions);
  for (const UpdateTask& task : tasks) {
    if (!HasElements(task)) continue;
    const Coefficients& given = *task.coefficients;
    const Buffer direction(next, given.arithmetic);
    next += DirectionBytesOf(task);

    const auto [known, is_new] = with_direction.try_emplace(&given, nullptr);
    if (is_new) {
      Coefficients more = given;
      more.slots |= SlotSet{1} << rule.direction_slot;
      known->second = &launches.coefficients_.emplace_back(more);
    }
    UpdateTask writes = task;
    writes.coefficients = known->second;
    writes.span.slots[rule.direction_slot] = direction;
    writes.span.keeps_parameter = true;

    // A set for each task, since each has a step size of its own.
    Coefficients& of_step = launches.coefficients_.emplace_back();
    of_step.arithmetic = given.arithmetic;
    StepSize size;
    size.task = static_cast<int64_t>(first.size());
    size.lr = given.values[rule.lr];
    size.is_scaled = given.values[rule.is_scaled];
    size_of[&of_step] = size;
    UpdateTask steps = task;
    steps.coefficients = &of_step;
    steps.span.gradient = direction;
    steps.span.slots = {};

    launches.squares_.AddParameter(writes.span);
    launches.squares_.Add(direction, task.span.elements);
    first.push_back(writes);
    second.push_back(steps);
  }
  absl::StatusOr<std::vector<LaunchTable>> tables = LaunchTable::For(first);
  if (!tables.ok()) return tables.status();
  launches.directions_ = *std::move(tables);
  tables = LaunchTable::For(second);
  if (!tables.ok()) return tables.status();
  for (LaunchTable& table : *tables) {
    Step step(std::move(table));
    step.minus_step_size_ = rule.minus_step_size;
    for (const Coefficients* set : step.table().coefficients()) {
      step.sizes_.push_back(size_of[set]);
    }
    launches.steps_.push_back(std::move(step));
  }
  return launches;
}

}  // namespace optshard

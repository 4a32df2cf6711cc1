#include "server/shard/engine/trainer_updates.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/dataplane/tree_average.h"
#include "common/dtype.h"
#include "common/dtype_conversion.h"
#include "common/errors.h"

namespace optshard {
namespace {

// Averages that are rounded to 16 bits at a time: they stay in the first-level cache.
constexpr int64_t kTile = 2048;

void Copy(ConstBuffer from, int64_t elements, Buffer to) {
  std::memcpy(to.data(), from.data(), elements * SizeOf(to.dtype()));
}

// Where the replicas' gradients are given, their average from element `first` of the span on.
void AverageFrom(const SpanUpdate& span, int64_t first, int64_t elements, void* to) {
  AverageOfGroups(span.replicas.group_sizes, span.gradient.dtype(), span.replicas.gradients,
                  span.replicas.first + first, elements, to);
}

// The same bits, whichever way the gradients came: averages of 16-bit ones are rounded once.
void LoadGradient(const SpanUpdate& span, Buffer to) {
  const bool averages = !span.replicas.gradients.empty();
  if (!averages && span.gradient.dtype() == to.dtype()) {
    Copy(span.gradient, span.elements, to);
  } else if (!averages) {
    Narrow(to.dtype(), span.gradient.As<float>(), span.elements, to.data());
  } else if (ArithmeticOf(to.dtype()) == to.dtype()) {
    AverageFrom(span, 0, span.elements, to.data());
  } else {
    alignas(64) float tile[kTile];
    for (int64_t begin = 0; begin < span.elements; begin += kTile) {
      const int64_t count = std::min(kTile, span.elements - begin);
      AverageFrom(span, begin, count, tile);
      Narrow(to.dtype(), tile, count, to.From(begin).data());
    }
  }
}

}  // namespace

absl::Status TrainerUpdates::Run(const StepRecord& record, SpanPlace place) {
  loads_.clear();
  for (Group& group : groups_) {
    group.owns = false;
    group.updated.clear();
  }
  for (const ShardStore::OwnBucket& own : context_.store->own_buckets()) {
    if (!Runs(own.bucket->group)) continue;
    if (absl::Status added = Add(own, record, place); !added.ok()) return added;
  }
  if (!loads_.empty()) {
    std::atomic<size_t> next{0};
    const auto parts = static_cast<int>(std::min<size_t>(threads_->threads(), loads_.size()));
    threads_->Run(parts, [&](int) {
      for (size_t i = next++; i < loads_.size(); i = next++) {
        const Load& load = loads_[i];
        Copy(load.from.parameter, load.from.elements, load.to.parameter);
        LoadGradient(load.from, load.to.gradient);
      }
    });
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!groups_[g].owns) continue;
    const absl::Status updated = (*context_.groups)[g].trainer_update->Update(groups_[g].updated);
    if (!updated.ok()) return errors::WithContext(updated, absl::StrCat("param group ", g));
  }
  return absl::OkStatus();
}

absl::Status TrainerUpdates::Add(const ShardStore::OwnBucket& own, const StepRecord& record,
                                 SpanPlace place) {
  Group& group = groups_[own.bucket->group];
  group.owns = true;
  for (const BucketSpan& span : own.bucket->spans) {
    if (!record.updated[span.parameter]) continue;
    if (span.parameter_offset_elements == 0) group.updated.push_back(span.parameter);
    const absl::StatusOr<TrainerUpdate::Arrays> arrays =
        (*context_.groups)[own.bucket->group].trainer_update->ArraysOf(span.parameter);
    if (!arrays.ok()) {
      return errors::WithContext(
          arrays.status(),
          absl::StrFormat("param group %d, parameter %d \"%s\"", own.bucket->group, span.parameter,
                          context_.space().parameter(span.parameter).name));
    }
    Load load;
    load.to.parameter = arrays->parameter.From(span.parameter_offset_elements);
    load.to.gradient = arrays->gradient.From(span.parameter_offset_elements);
    load.from.elements = span.elements;
    place(own, span, &load.from);
    loads_.push_back(load);
  }
  return absl::OkStatus();
}

absl::Status TrainerUpdates::Store(const ShardStore::OwnBucket& own, const StepRecord& record,
                                   SpanPlace place) {
  TrainerUpdate& update = *(*context_.groups)[own.bucket->group].trainer_update;
  for (const BucketSpan& span : own.bucket->spans) {
    if (!record.updated[span.parameter]) continue;
    const absl::StatusOr<TrainerUpdate::Arrays> arrays = update.ArraysOf(span.parameter);
    if (!arrays.ok()) return arrays.status();
    const Buffer updated = arrays->parameter.From(span.parameter_offset_elements);
    SpanUpdate to;
    place(own, span, &to);
    Copy(updated, span.elements, to.parameter);
    for (void* const copy : to.replicas.copies) {
      Copy(updated, span.elements, Buffer(copy, updated.dtype()).From(to.replicas.first));
    }
  }
  return absl::OkStatus();
}

}  // namespace optshard

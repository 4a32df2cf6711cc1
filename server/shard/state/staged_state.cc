#include "server/shard/state/staged_state.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bucket.h"
#include "common/dtype.h"

namespace optshard {

absl::StatusOr<std::unique_ptr<StagedState>> StagedState::Create(const ShardStore& store, Rank rank,
                                                                 Replacing what,
                                                                 MemoryBudget* budget) {
  std::unique_ptr<StagedState> staged(new StagedState(what, budget));
  absl::Status allocated = staged->Allocate(store, rank);
  if (!allocated.ok()) return allocated;
  return staged;
}

StagedState::~StagedState() {
  store_.reset();
  parameter_memory_ = MappedMemory();
  budget_.Release(reserved_bytes_);
}

absl::Status StagedState::Allocate(const ShardStore& store, Rank rank) {
  int64_t parameter_bytes = 0;
  if (what_ == Replacing::kAll) {
    for (const ShardStore::OwnBucket& own : store.own_buckets()) {
      parameter_bytes += own.bucket->bytes();
    }
  }
  const std::string name =
      absl::StrCat("the state that rank ", rank, " loads beside the one that ", "it has");
  const int64_t bytes = store.BytesAlike() + parameter_bytes;
  absl::Status fits = budget_.Reserve(bytes, name);
  if (!fits.ok()) return fits;
  reserved_bytes_ = bytes;
  absl::StatusOr<std::unique_ptr<ShardStore>> alike = store.CreateAlike();
  if (!alike.ok()) return alike.status();
  store_ = *std::move(alike);
  absl::StatusOr<MappedMemory> memory =
      MappedMemory::Allocate(static_cast<size_t>(parameter_bytes), name);
  if (!memory.ok()) return memory.status();
  parameter_memory_ = *std::move(memory);
  if (parameter_memory_.data() == nullptr) return absl::OkStatus();

  char* next = static_cast<char*>(parameter_memory_.data());
  for (const ShardStore::OwnBucket& own : store.own_buckets()) {
    const Buffer bucket(std::exchange(next, next + own.bucket->bytes()), own.bucket->dtype);
    for (const BucketSpan& span : own.bucket->spans) {
      parameters_.push_back({span.parameter, span.parameter_offset_elements, span.elements,
                             bucket.From(span.bucket_offset_elements)});
    }
  }
  std::sort(parameters_.begin(), parameters_.end(), [](const Values& a, const Values& b) {
    return std::make_pair(a.parameter, a.offset_elements) <
           std::make_pair(b.parameter, b.offset_elements);
  });
  return absl::OkStatus();
}

std::vector<StagedState::Values>::const_iterator StagedState::ValuesAt(
    int parameter, int64_t offset_elements) const {
  const auto ends_before = [](const Values& values, std::pair<int, int64_t> place) {
    return std::make_pair(values.parameter, values.offset_elements + values.elements) <= place;
  };
  return std::lower_bound(parameters_.begin(), parameters_.end(),
                          std::make_pair(parameter, offset_elements), ends_before);
}

char* StagedState::ParameterMemory(int parameter, int64_t offset_elements, int64_t elements) const {
  const auto values = ValuesAt(parameter, offset_elements);
  if (values == parameters_.end() || values->parameter != parameter) return nullptr;
  const int64_t within = offset_elements - values->offset_elements;
  if (within < 0 || elements > values->elements - within) return nullptr;
  return static_cast<char*>(values->from.From(within).data());
}

void StagedState::WriteParameter(int parameter, int64_t offset_elements, int64_t elements,
                                 const void* from) {
  const int64_t end = offset_elements + elements;
  for (auto values = ValuesAt(parameter, offset_elements);
       values != parameters_.end() && values->parameter == parameter; ++values) {
    const int64_t first = std::max(offset_elements, values->offset_elements);
    const int64_t last = std::min(end, values->offset_elements + values->elements);
    if (first >= last) break;
    const auto size = static_cast<int64_t>(SizeOf(values->from.dtype()));
    std::memcpy(values->from.From(first - values->offset_elements).data(),
                static_cast<const char*>(from) + (first - offset_elements) * size,
                (last - first) * size);
  }
}

}  // namespace optshard

#include "server/shard/snapshot/snapshot_memory.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "server/shard/state/mapped_memory.h"

namespace optshard {
namespace {

constexpr int64_t kPage = 4096;

void Touch(void* data, int64_t bytes) {
  auto* const first = static_cast<volatile char*>(data);
  for (int64_t at = 0; at < bytes; at += kPage) first[at] = 0;
}

}  // namespace

int64_t SnapshotMemory::RoundedUp(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

absl::StatusOr<std::shared_ptr<SnapshotMemory>> SnapshotMemory::Create(const Options& options) {
  std::shared_ptr<SnapshotMemory> memory(new SnapshotMemory(options));
  if (!options.at_start) return memory;
  absl::MutexLock lock(&memory->mutex_);
  absl::Status mapped = memory->Map();
  if (!mapped.ok()) return mapped;
  Touch(memory->memory_.get(), options.bytes);
  memory->touched_ = RoundedUp(options.bytes);
  return memory;
}

SnapshotMemory::~SnapshotMemory() {
  absl::MutexLock lock(&mutex_);
  if (memory_ != nullptr) options_.budget->Release(options_.bytes);
}

absl::StatusOr<SnapshotMemory::Piece> SnapshotMemory::Take(int64_t bytes) {
  if (bytes == 0) return Piece();
  char* data = nullptr;
  int64_t offset = 0;
  int64_t touched = 0;
  {
    absl::MutexLock lock(&mutex_);
    // The first gap that is large enough.
    for (const auto& [begin, size] : used_) {
      if (begin - offset >= bytes) break;
      offset = RoundedUp(begin + size);
    }
    if (bytes > options_.bytes - offset) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("a snapshot of rank %d needs %d bytes for copies; its snapshots may "
                          "have %d bytes (snapshot_memory), of which %d are used",
                          options_.rank, bytes, options_.bytes, Used()));
    }
    absl::Status mapped = Map();
    if (!mapped.ok()) return mapped;
    used_[offset] = bytes;
    data = static_cast<char*>(memory_.get()) + offset;
    touched = std::clamp<int64_t>(touched_ - offset, 0, RoundedUp(bytes));
  }
  // Once: a trainer waits for it, and there may be many pages.
  if (touched < bytes) Touch(data + touched, bytes - touched);
  {
    absl::MutexLock lock(&mutex_);
    if (offset <= touched_) touched_ = std::max(touched_, RoundedUp(offset + bytes));
  }
  return Piece(data, [memory = shared_from_this(), offset](char*) { memory->GiveBack(offset); });
}

int64_t SnapshotMemory::used_bytes() const {
  absl::MutexLock lock(&mutex_);
  return Used();
}

absl::StatusOr<std::shared_ptr<void>> SnapshotMemory::Allocate() const {
  if (options_.device != nullptr) {
    absl::StatusOr<std::shared_ptr<void>> pinned = options_.device->AllocateOnHost(options_.bytes);
    if (!pinned.ok()) return errors::WithContext(pinned.status(), Name());
    return pinned;
  }
  absl::StatusOr<MappedMemory> mapped = MappedMemory::Allocate(options_.bytes, Name());
  if (!mapped.ok()) return mapped.status();
  const auto owner = std::make_shared<const MappedMemory>(*std::move(mapped));
  return std::shared_ptr<void>(owner, owner->data());
}

std::string SnapshotMemory::Name() const {
  return absl::StrFormat("the snapshots of rank %d", options_.rank);
}

absl::Status SnapshotMemory::Map() {
  if (memory_ != nullptr || options_.bytes == 0) return absl::OkStatus();
  absl::Status fits = options_.budget->Reserve(options_.bytes, Name());
  if (!fits.ok()) return fits;
  absl::StatusOr<std::shared_ptr<void>> memory = Allocate();
  if (!memory.ok()) {
    options_.budget->Release(options_.bytes);
    return memory.status();
  }
  memory_ = *std::move(memory);
  // What is pinned is there.
  if (options_.device != nullptr) touched_ = RoundedUp(options_.bytes);
  return absl::OkStatus();
}

int64_t SnapshotMemory::Used() const {
  int64_t bytes = 0;
  for (const auto& [offset, size] : used_) bytes += size;
  return bytes;
}

void SnapshotMemory::GiveBack(int64_t offset) {
  absl::MutexLock lock(&mutex_);
  used_.erase(offset);
}

}  // namespace optshard

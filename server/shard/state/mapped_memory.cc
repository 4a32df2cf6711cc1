#include "server/shard/state/mapped_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace optshard {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

absl::StatusOr<MappedMemory> MappedMemory::Allocate(size_t bytes, absl::string_view what) {
  MappedMemory memory;
  if (bytes == 0) return memory;
  const auto exhausted = [&](absl::string_view why) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "cannot map %d bytes (%.3f GiB) for %s: %s; give the process more memory or "
        "spread the optimizer over more ranks",
        bytes, static_cast<double>(bytes) / (int64_t{1} << 30), what, why));
  };
  if (bytes > std::numeric_limits<size_t>::max() / 2) return exhausted("no machine has as much");
  // Small allocations are not worth a huge page.
  const bool huge = bytes >= kHugePageBytes;
  const size_t mapping_bytes = bytes + (huge ? kHugePageBytes : 0);
  void* mapping =
      mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return exhausted(std::strerror(errno));
  memory.mapping_ = mapping;
  memory.mapping_bytes_ = mapping_bytes;
  memory.bytes_ = bytes;
  memory.data_ = mapping;
  if (huge) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(mapping);
    const uintptr_t aligned = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    memory.data_ = reinterpret_cast<void*>(aligned);
    // A hint: without huge pages all works, with more TLB misses.
    madvise(memory.data_, bytes, MADV_HUGEPAGE);
  }
  return memory;
}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

}  // namespace optshard

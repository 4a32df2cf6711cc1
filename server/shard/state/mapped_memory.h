// Zero-filled memory straight from the system, friendly to huge pages.
#ifndef OPTSHARD_SERVER_SHARD_STATE_MAPPED_MEMORY_H_
#define OPTSHARD_SERVER_SHARD_STATE_MAPPED_MEMORY_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace optshard {

// Pages are taken when they are first touched. Move-only; thread-compatible.
class MappedMemory {
 public:
  // RESOURCE_EXHAUSTED naming `what` and the size. Nothing is mapped for 0 bytes.
  static absl::StatusOr<MappedMemory> Allocate(size_t bytes, absl::string_view what);

  MappedMemory() = default;
  MappedMemory(MappedMemory&& other) noexcept { *this = static_cast<MappedMemory&&>(other); }
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  // Aligned to huge pages (2 MiB); null where nothing is mapped.
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_MAPPED_MEMORY_H_

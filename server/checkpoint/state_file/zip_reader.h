// Reads zip archives whose entries are stored as they are, as PyTorch's are.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_ZIP_READER_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_ZIP_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint/file_system.h"

namespace optshard {

constexpr int64_t kMaxZipEntries = int64_t{1} << 20;
constexpr int64_t kMaxZipDirectoryBytes = int64_t{1} << 28;

struct ZipEntry {
  std::string name;
  int64_t offset_bytes = 0;  // of its data in the file
  int64_t bytes = 0;
  uint32_t crc32 = 0;
};

// All entries, by name. The data of each lies in the file, and no two overlap.
//
// INVALID_ARGUMENT naming the entry: no archive or a damaged one, entries that overlap, a name that
// is twice or cannot be printed, more than the limits, an entry that is compressed or encrypted.
// And the file's own errors. Thread-safe.
absl::StatusOr<std::vector<ZipEntry>> ReadZipDirectory(File& file);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_ZIP_READER_H_

// Writes zip archives as PyTorch lays them out: entries are stored as they are, and begin at
// multiples of 64 bytes, so that they can be mapped.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_ZIP_WRITER_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_ZIP_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/checkpoint/file_system.h"

namespace optshard {

struct ZipWriterOptions {
  // A size or offset from here on is written in 64 bits.
  int64_t from_64_bits = UINT32_MAX;
};

// Calls come in this order: for each entry Begin, Append as often as it takes, End; then Finish.
// Keeps no data. Errors are those of files; after one the file is no archive. Thread-compatible.
class ZipWriter {
 public:
  // The file is new, and outlives the writer.
  explicit ZipWriter(File& file, const ZipWriterOptions& options = {});

  // An entry of `bytes` bytes. Names are given once, and have at most 1000 bytes.
  void Begin(absl::string_view name, int64_t bytes);
  // The next of its bytes.
  absl::Status Append(absl::string_view bytes);
  // After all of them.
  absl::Status End();
  // All of a small one.
  absl::Status Write(absl::string_view name, absl::string_view bytes);

  absl::Status Finish();

 private:
  struct Entry {
    std::string name;
    int64_t bytes = 0;
    int64_t header_offset = 0;
    uint32_t crc32 = 0;
  };

  bool Needs64(int64_t number) const { return number >= options_.from_64_bits; }
  std::string LocalHeader(const Entry& entry) const;
  // What both headers have, from the version that a reader needs to the sizes of name and extra.
  void PutEntry(const Entry& entry, uint16_t version, size_t extra_bytes,
                std::string& header) const;
  std::string CentralHeader(const Entry& entry) const;

  File& file_;
  const ZipWriterOptions options_;
  std::vector<Entry> entries_;
  int64_t next_ = 0;  // where the file goes on
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_ZIP_WRITER_H_

// Reads a committed checkpoint, whoever owned what when it was saved.
#ifndef OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_READER_H_
#define OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_READER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "server/checkpoint/checkpoint_file.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/checkpoint/file_system.h"

namespace optshard {

// Everything that it gives out was checked against the manifest's checksums. It has a file open
// only while it reads it. Thread-safe.
class CheckpointReader {
 public:
  // Reads the manifest and checks the headers of all files. NOT_FOUND: the directory is not a
  // committed checkpoint. DATA_LOSS naming the file, and the tensor, where one is missing, too
  // short or too long, or its header is not what the manifest says. Other errors as ReadManifest's
  // (checkpoint_list.h).
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      std::unique_ptr<Directory> directory);

  const CheckpointManifest& manifest() const { return manifest_; }

  // Elements of an array; of a coded one those of a part that go with them. The range begins and
  // ends on the array's CutGrid, or ends with the array, and `to` has PartBytes of it.
  // INVALID_ARGUMENT for other ranges. DATA_LOSS naming file, tensor and offset where the bytes are
  // not those that were saved; `to` has anything then.
  absl::Status Read(int parameter, int array, ArrayPart part, int64_t offset_elements,
                    int64_t elements, absl::Span<char> to) const;

  // What the rank's trainer had kept; nothing where it had kept nothing.
  absl::StatusOr<absl::optional<std::string>> ReadBlob(Rank rank) const;

 private:
  // A stretch of an array's part: by parameter, array, part and where it begins.
  using Place = std::tuple<int, int, ArrayPart, int64_t>;

  CheckpointReader() = default;

  CheckpointManifest manifest_;
  std::unique_ptr<Directory> directory_;
  std::map<Place, TensorInFile> tensors_;
  std::map<Rank, TensorInFile> blobs_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_READER_H_

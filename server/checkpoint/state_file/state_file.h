// Files that hold the state of an optimizer, or other tensors: .pt and .safetensors.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_STATE_FILE_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_STATE_FILE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/state_file/file_value.h"

namespace optshard {

enum class StateFileFormat { kTorch, kSafetensors };

// By the end of the name. INVALID_ARGUMENT for one that is neither .pt, .pth nor .safetensors.
absl::StatusOr<StateFileFormat> FormatOfName(absl::string_view name);

// Thread-safe.
class StateFile {
 public:
  // Reads what is in the file, of whatever format and name, but not the tensors' bytes.
  // INVALID_ARGUMENT and DATA_LOSS as ReadTorchFile, ReadSafetensorsHeader and FromSafetensors;
  // errors of files.
  static absl::StatusOr<std::unique_ptr<StateFile>> Open(std::unique_ptr<File> file);
  // The file itself must not be a link (ResolvedPath).
  static absl::StatusOr<std::unique_ptr<StateFile>> Open(FileSystem& system,
                                                         absl::string_view path);

  const FileDocument& document() const { return document_; }
  const std::string& path() const { return file_->path(); }

  // A tensor's elements in C order; `to` has FileTensor::bytes(). DATA_LOSS where the file's
  // checksum says that the storage is damaged. Where the tensor is only a part of its storage, it
  // takes memory for all of that.
  absl::Status Read(const FileTensor& tensor, absl::Span<char> to) const;

 private:
  StateFile(std::unique_ptr<File> file, FileDocument document)
      : file_(std::move(file)), document_(std::move(document)) {}

  absl::Status ReadStorage(const FileStorage& storage, absl::Span<char> to) const;

  const std::unique_ptr<File> file_;
  const FileDocument document_;
};

// Writes the file, or replaces the one that is there (WriteFileAtomically). Errors as
// WriteTorchFile and ToSafetensors. Thread-safe.
absl::Status WriteStateFile(FileSystem& system, absl::string_view path,
                            const FileDocument& document, const TensorBytes& source,
                            const FileProgress& progress = {});

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_STATE_FILE_H_

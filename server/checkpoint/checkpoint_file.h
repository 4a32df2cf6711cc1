// One file of a committed checkpoint, and the tensors in it.
#ifndef OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_FILE_H_
#define OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_FILE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/checkpoint/file_system.h"

namespace optshard {

// Does not own what it points to.
struct TensorInFile {
  const CheckpointTensor* tensor = nullptr;
  const CheckpointFile* part = nullptr;  // that has it
  int64_t offset_bytes = 0;              // in the file

  int64_t block_bytes(int64_t block) const;
  // Reads one block of kChecksumBlockBytes, or the shorter last one, of that part and checks it.
  // DATA_LOSS naming file, tensor and offset where it is not what was saved. Thread-safe.
  absl::Status ReadBlock(File& file, int64_t block, absl::Span<char> to) const;
};

struct OpenedFile {
  std::unique_ptr<File> file;
  std::vector<TensorInFile> tensors;  // as CheckpointFile::tensors
};

// Opens a file of the manifest and checks that its size and header are as the manifest says; both
// outlive the result. DATA_LOSS naming the file, and the tensor, where it is missing, too short,
// too long or its header is damaged; INVALID_ARGUMENT where its header is none. Errors of files.
// Thread-safe.
absl::StatusOr<OpenedFile> OpenCheckpointFile(Directory& directory,
                                              const CheckpointManifest& manifest,
                                              const CheckpointFile& described);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_FILE_H_

#include "server/checkpoint/verify.h"

#include <utility>

#include "absl/types/span.h"
#include "server/checkpoint/block_checksums.h"
#include "server/checkpoint/checkpoint_file.h"
#include "server/checkpoint/checkpoint_list.h"

namespace optshard {

absl::StatusOr<std::vector<Damage>> VerifyCheckpoint(Directory& checkpoint,
                                                     const VerifyOptions& options) {
  const auto manifest = ReadManifest(checkpoint);
  if (!manifest.ok()) return manifest.status();
  const int64_t all = manifest->bytes();
  int64_t done = 0;
  std::vector<Damage> damages;
  std::string block_bytes;
  if (options.step) {
    const absl::Status named = CheckStep(checkpoint, *manifest, *options.step);
    if (!named.ok()) damages.push_back({kManifestName, "", 0, 0, std::string(named.message())});
  }
  for (const CheckpointFile& file : manifest->files) {
    const int64_t before = done;
    const auto opened = OpenCheckpointFile(checkpoint, *manifest, file);
    if (!opened.ok()) {
      damages.push_back({file.name, "", 0, 0, std::string(opened.status().message())});
    }
    const auto tensors =
        opened.ok() ? absl::MakeConstSpan(opened->tensors) : absl::Span<const TensorInFile>();
    for (const TensorInFile& tensor : tensors) {
      for (int64_t block = 0; block < ChecksumBlocks(tensor.tensor->bytes); ++block) {
        if (options.cancellation != nullptr) {
          absl::Status cancelled = options.cancellation->reason();
          if (!cancelled.ok()) return cancelled;
        }
        block_bytes.resize(static_cast<size_t>(tensor.block_bytes(block)));
        const absl::Status read =
            tensor.ReadBlock(*opened->file, block, absl::MakeSpan(block_bytes));
        if (!read.ok()) {
          damages.push_back({file.name, tensor.tensor->name,
                             tensor.offset_bytes + block * kChecksumBlockBytes,
                             tensor.block_bytes(block), std::string(read.message())});
        }
        done += tensor.block_bytes(block);
        if (options.progress) options.progress(done, all);
      }
    }
    done = before + file.bytes;
  }
  return damages;
}

}  // namespace optshard

#include "server/checkpoint/state_file/model_files.h"

#include "server/checkpoint/state_file/atomic_file.h"
#include "server/checkpoint/state_file/safetensors_state.h"

namespace optshard {

absl::Status WriteModel(Directory& directory, absl::Span<const SafetensorsTensor> tensors,
                        const TensorBytes& source, int64_t shard_bytes,
                        const FileProgress& progress) {
  const auto model = LayOutModel(tensors, shard_bytes);
  if (!model.ok()) return model.status();
  int64_t done = 0;
  for (const ModelFile& file : model->files) {
    const auto source_here = [&](size_t tensor, int64_t offset_bytes, int64_t count) {
      return source(file.tensors[tensor], offset_bytes, count);
    };
    const auto progress_here = [&](int64_t done_here, int64_t) {
      if (progress) progress(done + done_here, model->tensor_bytes);
    };
    absl::Status written = WriteFileAtomically(directory, file.name, [&](File& to) {
      return WriteLaidOut(file.layout, source_here, to, progress_here);
    });
    if (!written.ok()) return written;
    done += file.layout.header.data_bytes();
  }
  if (model->index.empty()) return absl::OkStatus();
  return WriteFileAtomically(directory, kModelIndexName,
                             [&](File& to) { return to.WriteAt(0, {model->index}); });
}

}  // namespace optshard

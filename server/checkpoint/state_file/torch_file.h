// .pt files: what torch.save writes since PyTorch 1.6, a zip archive that has the pickle of a value
// and an entry for the bytes of each tensor:
//
//   NAME/data.pkl      the pickle (pickle_reader.h)
//   NAME/byteorder     "little"
//   NAME/data/0        the bytes of storage "0", at a multiple of 64 bytes in the file
//   NAME/version       "3\n"
//
// All functions are thread-safe.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_TORCH_FILE_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_TORCH_FILE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/state_file/file_value.h"
#include "server/checkpoint/state_file/zip_writer.h"

namespace optshard {

// Reads the pickle, without running it, and finds the tensors' bytes, which are not read.
// INVALID_ARGUMENT as ReadZipDirectory and ReadPickle; for a file of PyTorch before 1.6, saying how
// to save it again; for one whose bytes are big-endian, or whose entry for a tensor is missing or
// too short. DATA_LOSS where the checksum of the pickle is wrong.
absl::StatusOr<FileDocument> ReadTorchFile(File& file);

// What torch.load(path, weights_only=True) reads. The file is new. Of the tensors only types and
// shapes count; their bytes are written as they come, and not kept. Equal documents make equal
// files. Errors as PickleOf, of the source, and of files.
absl::Status WriteTorchFile(const FileDocument& document, const TensorBytes& source, File& file,
                            const FileProgress& progress = {},
                            const ZipWriterOptions& options = {});

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_TORCH_FILE_H_

// Pickles as torch.save makes them, protocol 2, with no other opcodes and names than torch.load's
// weights_only=True takes.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_WRITER_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_WRITER_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/checkpoint/state_file/file_value.h"

namespace optshard {

// The document's value. Tensor i is contiguous, and all of a storage that has the key "i".
// INVALID_ARGUMENT for a tensor of a type that has no storage in PyTorch, and for a text that is
// not UTF-8 or beyond 4 GiB. Thread-safe.
absl::StatusOr<std::string> PickleOf(const FileDocument& document);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_WRITER_H_

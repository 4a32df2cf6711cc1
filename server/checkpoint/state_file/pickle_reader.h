// Reads the pickle of a .pt file without running it. A pickle is a program: its opcodes build
// values on a stack, and may name functions of Python to be called. Only those opcodes are known
// here that dicts, lists, tuples, sets, numbers, texts and tensors need, and only those names that
// PyTorch's tensors have; each is carried out by this file alone. Everything else is refused.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_READER_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_READER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/checkpoint/state_file/file_value.h"

namespace optshard {

constexpr int64_t kMaxPickleBytes = int64_t{1} << 28;
// Of all values, each counted as often as it stands in another one. About 200 bytes of memory each.
constexpr int64_t kMaxPickleValues = int64_t{1} << 23;
constexpr int kMaxPickleDepth = 32;

// The pickle's value. Ordered dicts become dicts, sets lists, and parameters their tensors. Of the
// storages only names (the pickle's keys) and sizes in bytes are known then: what the tensors need
// at least. Tensors were checked against what the pickle says of their storages.
//
// INVALID_ARGUMENT, with the opcode's offset and what to do: an opcode or a name that is none of
// those above, something that is cut off, nested too deeply, or more than the limits; a tensor with
// elements outside its storage or more of them than that has. Takes memory in proportion to the
// pickle, and below the limits. Thread-safe.
absl::StatusOr<FileDocument> ReadPickle(absl::string_view pickle);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_READER_H_

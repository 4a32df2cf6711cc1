// The names of opcodes that pickles of tensors do not need, for messages.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_OPCODE_NAME_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_OPCODE_NAME_H_

#include <cstdint>
#include <string>

namespace optshard {

// As Python's pickletools has them: "NEWOBJ"; "0xff" of a byte that is no opcode. Thread-safe.
std::string PickleOpcodeName(uint8_t opcode);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_OPCODE_NAME_H_

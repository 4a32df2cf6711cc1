// State dicts in files that Python reads and writes, too.
#ifndef OPTSHARD_CLIENT_STATE_DICT_FILE_H_
#define OPTSHARD_CLIENT_STATE_DICT_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/state_dict.h"

namespace optshard {

class FileSystem;

// Writes the dict to a file that ends in
//   .pt            which torch.load(path, weights_only=True) reads, and torch.optim's
//                  load_state_dict takes
//   .safetensors   whose keys and metadata docs/exports.md describes
// A file of that name is replaced once the new one is on the device, so that an error or the end of
// the process leaves it as it was. Takes no memory for the tensors beside a copy of one that is not
// on the CPU or not contiguous. INVALID_ARGUMENT for another name, and for a value that such a file
// cannot hold, naming it; errors of files. Thread-safe.
absl::Status SaveStateDict(const StateDict& dict, const std::string& path);

// Reads what SaveStateDict writes, and what torch.save writes of state_dict() of an optimizer:
// PyTorch's own, ZeroRedundancyOptimizer's and fairscale's OSS once consolidated, bitsandbytes'
// (FromBitsAndBytes). No pickle is run: what is no plain value or tensor is refused. Where the file
// has the optimizer's state dict within another dict, `key` is the name under which it is there.
// INVALID_ARGUMENT where the file is none of these, saying what it has, and DATA_LOSS where it is
// damaged; errors of files. Thread-safe.
absl::StatusOr<StateDict> LoadStateDict(const std::string& path, const std::string& key = "");

// Likewise in another file system.
absl::Status SaveStateDict(FileSystem& system, const StateDict& dict, const std::string& path);
absl::StatusOr<StateDict> LoadStateDict(FileSystem& system, const std::string& path,
                                        const std::string& key = "");

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_STATE_DICT_FILE_H_

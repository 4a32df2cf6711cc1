// State dicts of other libraries than PyTorch.
#ifndef OPTSHARD_CLIENT_FOREIGN_STATE_DICTS_H_
#define OPTSHARD_CLIENT_FOREIGN_STATE_DICTS_H_

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/state_dict.h"

namespace optshard {

class FileSystem;

// The dict of an optimizer of bitsandbytes with two slots (Adam, AdamW, LAMB, in 8 or 32 bits) with
// PyTorch's names and with values in float32: "exp_avg" and "exp_avg_sq" in place of "state1",
// "qmap1", "absmax1" and so on. Slots of 8 bits here (docs/numerics.md) become the same codes again
// where its blocks have 256 elements. A dict without such names is returned as it is.
// INVALID_ARGUMENT, with the place, for one that is not whole, and for its other optimizers.
// Thread-safe.
absl::StatusOr<StateDict> FromBitsAndBytes(const StateDict& dict);

struct UniversalState {
  StateDict dict;  // without options: those of the optimizer stay
  // The parameters, in float32, by name.
  std::map<std::string, at::Tensor> parameters;
};

// What DeepSpeed's ds_to_universal has written into a directory: zero/NAME/exp_avg.pt, fp32.pt,
// step.pt and so on of each parameter. `groups` are the names of the optimizer's parameters, as
// DeepSpeed has them, over its param groups. Files are read as LoadStateDict reads them. Parameters
// that are there and have none of these names are left out. NOT_FOUND naming a parameter that is
// not there, INVALID_ARGUMENT for files that are something else, DATA_LOSS for damaged ones; errors
// of files. Thread-safe.
absl::StatusOr<UniversalState> LoadDeepSpeedUniversal(
    const std::string& directory, const std::vector<std::vector<std::string>>& groups);

// Likewise in another file system.
absl::StatusOr<UniversalState> LoadDeepSpeedUniversal(
    FileSystem& system, const std::string& directory,
    const std::vector<std::vector<std::string>>& groups);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_FOREIGN_STATE_DICTS_H_

// Hyperparameters as bytes, exactly, for processes that share a host's memory or sockets.
#ifndef OPTSHARD_COMMON_HYPERPARAMETER_BYTES_H_
#define OPTSHARD_COMMON_HYPERPARAMETER_BYTES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/hyperparameters.h"

namespace optshard {

std::string EncodeHyperparameters(absl::Span<const Hyperparameters> groups);
// INVALID_ARGUMENT where the bytes are none of the above. The values are not validated.
absl::StatusOr<std::vector<Hyperparameters>> DecodeHyperparameters(absl::string_view bytes);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_HYPERPARAMETER_BYTES_H_

// Encodes hyperparameters for another process on the same host. The values keep all their bits. The
// functions are thread-safe.
#ifndef OPTSHARD_COMMON_HYPERPARAMETER_BYTES_H_
#define OPTSHARD_COMMON_HYPERPARAMETER_BYTES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/hyperparameters.h"

namespace optshard {

// `groups` has one entry for each param group. Numbers are in the host's byte order.
std::string EncodeHyperparameters(absl::Span<const Hyperparameters> groups);

// INVALID_ARGUMENT where the bytes are not what EncodeHyperparameters writes. Accepts values that
// the rule would refuse.
absl::StatusOr<std::vector<Hyperparameters>> DecodeHyperparameters(absl::string_view bytes);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_HYPERPARAMETER_BYTES_H_

// Values that are no tensors as JSON, and back with the same types and bits.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_VALUE_JSON_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_VALUE_JSON_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "server/checkpoint/state_file/file_value.h"

namespace optshard {

// A tuple is {"tuple": [...]}, a number that JSON lacks {"float64_bits": "7ff0000000000000"}, a
// dict
// {"dict": [[key, value], ...]}, everything else what JSON calls it; floats always have a point or
// an exponent. INVALID_ARGUMENT for a tensor. Thread-safe.
absl::StatusOr<nlohmann::json> ValueJson(const FileValue& value);

// INVALID_ARGUMENT for an object that is none of these, and beyond the limits of ParseStrictJson.
// Thread-safe.
absl::StatusOr<FileValue> ValueOfJson(const nlohmann::json& json);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_VALUE_JSON_H_

// Numbers and hyperparameters as JSON, bit for bit. All functions are thread-safe.
#ifndef OPTSHARD_SERVER_CHECKPOINT_HYPERPARAMETER_JSON_H_
#define OPTSHARD_SERVER_CHECKPOINT_HYPERPARAMETER_JSON_H_

#include <nlohmann/json_fwd.hpp>

#include "absl/types/optional.h"
#include "common/hyperparameters.h"

namespace optshard {

// A number, or {"float64_bits": "7ff0000000000000"} of one that JSON has no number for.
nlohmann::json NumberJson(double value);
absl::optional<double> NumberOf(const nlohmann::json& json);

// A flag, a number, a list of numbers, a text.
nlohmann::json HyperJson(const HyperValue& value);
absl::optional<HyperValue> HyperOf(const nlohmann::json& json);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_HYPERPARAMETER_JSON_H_

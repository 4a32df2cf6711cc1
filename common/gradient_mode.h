// Who averages the gradients over the ranks.
#ifndef OPTSHARD_COMMON_GRADIENT_MODE_H_
#define OPTSHARD_COMMON_GRADIENT_MODE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace optshard {

// Values are stable: they are part of messages.
enum class GradientMode : uint8_t {
  // The trainer's gradients are averaged over the ranks already (DDP). A gradient that some ranks
  // have and others miss is an error naming parameter and ranks.
  kAveraged = 1,
  // The service averages them on the way to the owner. Missing on some ranks counts as zero there;
  // missing on all, the parameter is skipped.
  kReduce = 2,
};

absl::string_view NameOf(GradientMode mode);  // "averaged", "reduce"

}  // namespace optshard

#endif  // OPTSHARD_COMMON_GRADIENT_MODE_H_

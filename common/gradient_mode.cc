#include "common/gradient_mode.h"

namespace optshard {

absl::string_view NameOf(GradientMode mode) {
  return mode == GradientMode::kAveraged ? "averaged" : "reduce";
}

}  // namespace optshard

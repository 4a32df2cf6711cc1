// Rules that take a direction for each parameter, and a step along it whose size follows from the
// norms of both: LAMB. On a device these are two formulas with norms between them.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_NORM_SCALED_RULE_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_NORM_SCALED_RULE_H_

#include "absl/strings/string_view.h"

namespace optshard {

// What such a rule's file says of its formulas.
struct NormScaledRule {
  const char* rule = nullptr;       // RuleSpec::name
  const char* direction = nullptr;  // the formula that writes the direction as if it were a slot
  const char* step = nullptr;       // and the one that has it for its gradient
  int direction_slot = 0;
  int lr = 0;               // coefficients of the first formula: MinusNormScaledLr's
  int is_scaled = 0;        // (server/update/norm_ratio.h)
  int minus_step_size = 0;  // of the second one: its result
};

// Those whose kernels are linked in.
class NormScaledRules {
 public:
  // Null where there is none of that name.
  static const NormScaledRule* Find(absl::string_view rule);
  // At static initialisation; returns true.
  static bool Register(const NormScaledRule& rule);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_NORM_SCALED_RULE_H_

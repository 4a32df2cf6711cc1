// An update rule that moves the memory of Adam's update and computes next to nothing: the bound
// that no update of two slots can pass, in the same loops and vectors as the real rules.
#ifndef OPTSHARD_BENCHMARKS_STREAM_RULE_H_
#define OPTSHARD_BENCHMARKS_STREAM_RULE_H_

#include <cstdint>

#include "server/update/update_rule.h"

namespace optshard {

// Read every replica's gradient, one parameter and two slots; write all parameters and the slots.
constexpr int64_t StreamRuleBytesPerElement(int replicas) { return 20 + int64_t{8} * replicas; }

// Lives for ever. Not registered: nobody can train with it.
const UpdateRule& StreamRule();

}  // namespace optshard

#endif  // OPTSHARD_BENCHMARKS_STREAM_RULE_H_

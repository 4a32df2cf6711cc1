// How much a formula may have, and which slots it has.
#ifndef OPTSHARD_SERVER_UPDATE_FORMULA_LIMITS_H_
#define OPTSHARD_SERVER_UPDATE_FORMULA_LIMITS_H_

#include <cstdint>

namespace optshard {

constexpr int kMaxSlots = 4;
constexpr int kMaxCoefficients = 16;

// Which of a rule's slots exist: bit k is that of RuleSpec::slots[k].
using SlotSet = uint32_t;

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_FORMULA_LIMITS_H_

// Codes for values that have been decoded before: read from one array of codes, they become
// another.
#ifndef OPTSHARD_COMMON_BLOCK_RECODE_H_
#define OPTSHARD_COMMON_BLOCK_RECODE_H_

#include <cstdint>

#include "common/block_code.h"

namespace optshard {

// As Encode, of which the scale is not always that of the codes that the values were decoded from:
// in a block of kDynamicSigned whose largest value is negative, that value is the map's second
// largest times the scale, and scales in float16 below 2^-14 have few digits. Here a block of
// values that some codes stand for becomes such codes, so that Decode gives the same bits again;
// one of any other values becomes what Encode makes of it. The default floating-point mode must be
// set. Thread-safe.
void Recode(const float* values, int64_t elements, const CodedArray& to);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_BLOCK_RECODE_H_

// Whole blocks of each format of block_code.h, by the best instruction set of this CPU: for
// block_code.cc, which does the rest.
#ifndef OPTSHARD_COMMON_CODED_BLOCKS_H_
#define OPTSHARD_COMMON_CODED_BLOCKS_H_

#include <cstdint>

#include "common/block_code.h"
#include "common/lines_ahead.h"

namespace optshard {

void EncodeDynamicBlocks(const float* values, int64_t blocks, const CodedArray& to,
                         LinesAhead* meanwhile);
void DecodeDynamicBlocks(const CodedArray& from, int64_t blocks, float* values,
                         LinesAhead* meanwhile);
void EncodeCompandedBlocks(const float* values, int64_t blocks, const CodedArray& to,
                           LinesAhead* meanwhile);
void DecodeCompandedBlocks(const CodedArray& from, int64_t blocks, float* values,
                           LinesAhead* meanwhile);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CODED_BLOCKS_H_

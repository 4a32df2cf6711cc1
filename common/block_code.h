// Arrays of float32 in 8 bits an element: a code for each element and a scale for each block.
#ifndef OPTSHARD_COMMON_BLOCK_CODE_H_
#define OPTSHARD_COMMON_BLOCK_CODE_H_

#include <cstdint>

namespace optshard {

class LinesAhead;  // common/lines_ahead.h

// How values become codes and scales.
//
// Dynamic: the format of bitsandbytes and torchao. Blocks of 256 elements; the scale is the largest
// absolute value, a float32. A code is an index into the sorted map of 256 values that
// common/dynamic_map.h has, and the value is map[code] * scale. The nearest code is taken; halfway
// between two, the one further from 0.
//
// Companded: the format of FlashOptim (arXiv 2602.23349). Blocks of 32 elements; scales are
// float16. Of averages a code is an int8 q: 127 * 2x / (1 + |x|) with x = value / scale, to
// nearest; the value is q / (254 - |q|) * scale. Of squares it is a uint8 q: 255 * sqrt(value) /
// scale; the value is (q / 255 * scale)^2. Halfway between two codes it is the even one. Encoders
// divide by the scale as it is kept, rounded to float16 but at least 2^-24, the smallest one: what
// rounding does to the scale does no harm to the values. FlashOptim's own divides by the scale
// before it is rounded, and loses values below about 1e-6. Averages beyond 65504 and squares beyond
// its square become those.
//
// A value that is not finite makes its whole block NaN: each of its elements is decoded as NaN. In
// a code of values that are never negative, a negative one counts as 0. Nothing is decoded as -0 in
// a block of zeros.
enum class BlockCode : uint8_t {
  kDynamicSigned = 1,
  kDynamicUnsigned = 2,  // of values that are never negative
  kCompandedAverage = 3,
  kCompandedSquare = 4,  // of values that are never negative
};

// Blocks of every code tile this many elements. Whoever cuts an array that may be coded cuts it at
// multiples of it, counted from the array's beginning, so that codes do not depend on the cuts.
constexpr int64_t kCodeGrid = 256;

int64_t BlockElements(BlockCode code);  // a divisor of kCodeGrid

// The sizes of an array of so many elements; the last block may be incomplete.
int64_t CodeBytes(BlockCode code, int64_t elements);
int64_t ScaleBytes(BlockCode code, int64_t elements);

// Where a coded array begins. Does not own it. Thread-compatible.
struct CodedArray {
  BlockCode code = BlockCode::kDynamicSigned;
  uint8_t* codes = nullptr;  // null: there is no array
  void* scales = nullptr;    // float16 or float32, naturally aligned

  // From element `index` on, the first of a block; no array remains none.
  CodedArray From(int64_t index) const;
};

// A loop over codes calls LinesAhead::FetchSome at most once in so many elements.
constexpr int64_t kElementsAFetch = 64;

// The same bits by every instruction set. `values` needs only natural alignment and does not
// overlap the array; an incomplete block is the last one of a whole array. `meanwhile`, if any, is
// what to fetch: coding is arithmetic, and leaves the memory idle. The default floating-point mode
// must be set (common/default_floating_point.h). Thread-safe.
void Encode(const float* values, int64_t elements, const CodedArray& to,
            LinesAhead* meanwhile = nullptr);
void Decode(const CodedArray& from, int64_t elements, float* values,
            LinesAhead* meanwhile = nullptr);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_BLOCK_CODE_H_

// The values that the codes of the dynamic format stand for, and what finds the nearest one.
#ifndef OPTSHARD_COMMON_DYNAMIC_MAP_H_
#define OPTSHARD_COMMON_DYNAMIC_MAP_H_

#include <cstdint>

namespace optshard {

// The absolute values of a map by rank: 0, then seven decades of ever more of them, then 1. Decade
// d has n = first << d values, in the middles of as many equal parts of [0.1, 1] * 10^(d - 6). They
// are within 2^-22 of bitsandbytes' and torchao's, which themselves depend on the machine that
// computes them.
//
// A signed map has 128 values above 0 and all but 1 also below: code 127 + rank, or 127 - rank. An
// unsigned one has 255 above 0, and the code is the rank.
struct DynamicMap {
  static constexpr int kDecades = 7;
  static constexpr int kSections = kDecades + 1;  // the decades, and the 1
  // One number a section, padded to the longest vector's lanes.
  using PerSection = float[16];

  explicit DynamicMap(bool of_signed);

  bool is_signed;
  int first;    // values of the first decade: 1 or 2
  int largest;  // the rank of the 1

  // Value of rank k >= 1: with u = k + first - 1 = 2^e * f, 1 <= f < 2, it is that of section
  // s = e + 1 - first, start[s] + (f - 1) * slope[s].
  alignas(64) PerSection start = {};
  alignas(64) PerSection slope = {};
  float values[256];  // by rank

  // x has at least rank k where x >= middles[k - 1], the smallest float of which that is true.
  float middles[256];
  // A number that is within kQuotientDoubt units in the last place of x finds the rank of x: where
  // it lies in section s, from begins[s] up to begins[s + 1], the rank is the whole number nearest
  // to min(x * scale[s] + offset[s], limit[s]). There is doubt, and CodeFrom is to be asked, where
  // the number is as near to a begin, or the minimum within kPlaceDoubt of the middle of two ranks.
  static constexpr int32_t kQuotientDoubt = 4;
  static constexpr float kPlaceDoubt = 0x1p-13f;
  alignas(64) PerSection begins = {};
  alignas(64) PerSection scale = {};
  alignas(64) PerSection offset = {};
  alignas(64) PerSection limit = {};

  // Sections found by the exponent: among the floats of two octaves, those of which the exponent's
  // upper seven bits are the same, no two sections begin. With these bits modulo 16: where one
  // begins, else 2; and the section before that. Of floats from kSmallest to 1, which has rank 0.
  static constexpr float kSmallest = 0x1p-25f;
  alignas(64) float octave_begins[16];
  alignas(64) int32_t octave_sections[16] = {};

  // The code of x, |x| <= 1, found from a guess that is nearly right.
  uint8_t CodeFrom(uint8_t guess, float x) const;

  static const DynamicMap& Signed();
  static const DynamicMap& Unsigned();
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DYNAMIC_MAP_H_

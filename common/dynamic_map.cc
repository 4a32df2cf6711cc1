#include "common/dynamic_map.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include "common/half.h"

namespace optshard {
namespace {

// What separates two neighbours: the smallest float that is not nearer to the lower one.
float MiddleOf(float lower, float upper) {
  const double middle = (static_cast<double>(lower) + upper) / 2;
  const auto rounded = static_cast<float>(middle);
  return rounded < middle ? std::nextafter(rounded, upper) : rounded;
}

// Two octaves, modulo 16.
int OctavesOf(float x) { return BitsOf(x) >> 24 & 15; }

}  // namespace

DynamicMap::DynamicMap(bool of_signed)
    : is_signed(of_signed), first(of_signed ? 1 : 2), largest(of_signed ? 128 : 255) {
  values[0] = 0;
  int rank = 1;
  for (int d = 0; d < kDecades; ++d) {
    const int count = first << d;
    const double unit = std::pow(10, d - kDecades + 1);
    start[d] = static_cast<float>(unit * (0.1 + 0.45 / count));
    slope[d] = static_cast<float>(unit * 0.9);
    for (int j = 0; j < count; ++j) {
      values[rank++] = start[d] + static_cast<float>(j) / static_cast<float>(count) * slope[d];
    }
  }
  start[kDecades] = values[largest] = 1;
  slope[kDecades] = 0;

  std::fill(std::begin(middles), std::end(middles), HUGE_VALF);
  for (int k = 0; k < largest; ++k) middles[k] = MiddleOf(values[k], values[k + 1]);

  for (int s = 0; s < kSections; ++s) {
    const int lowest = (first << s) - first + 1;  // rank in this section
    begins[s] = middles[lowest - 1];
    const int last = std::min(lowest + (first << s) - 1, largest);
    limit[s] = static_cast<float>(last);
    double parts_per_one = 0;
    double at_zero = limit[s];
    if (s == 0) {
      // Also of what is below it, rank 0.
      const double next = last > lowest ? middles[lowest] : 3 * static_cast<double>(begins[0]);
      parts_per_one = 1 / (next - begins[0]);
      at_zero = lowest - 0.5 - begins[0] * parts_per_one;
    } else if (s < kDecades) {
      const double unit = std::pow(10, s - kDecades + 1);
      parts_per_one = (first << s) / (0.9 * unit);
      at_zero = lowest - 0.5 - 0.1 * unit * parts_per_one;
    }
    scale[s] = static_cast<float>(parts_per_one);
    offset[s] = static_cast<float>(at_zero);
  }
  begins[0] = 0;

  std::fill(std::begin(octave_begins), std::end(octave_begins), 2.0f);
  for (int s = 1; s < kSections; ++s) octave_begins[OctavesOf(begins[s])] = begins[s];
  int section = 0;
  for (float x = kSmallest; x < 2; x *= 4) {
    octave_sections[OctavesOf(x)] = section;
    if (octave_begins[OctavesOf(x)] < 2) ++section;
  }
}

uint8_t DynamicMap::CodeFrom(uint8_t guess, float x) const {
  const int zero = is_signed ? 127 : 0;
  const bool is_negative = is_signed && x < 0;
  const float size = is_negative ? -x : x;
  int rank = std::abs(guess - zero);
  while (rank < largest && size >= middles[rank]) ++rank;
  while (rank > 0 && size < middles[rank - 1]) --rank;
  // There is no -1.
  return static_cast<uint8_t>(std::max(is_negative ? zero - rank : zero + rank, 0));
}

const DynamicMap& DynamicMap::Signed() {
  static const DynamicMap map(/*of_signed=*/true);
  return map;
}

const DynamicMap& DynamicMap::Unsigned() {
  static const DynamicMap map(/*of_signed=*/false);
  return map;
}

}  // namespace optshard

// What the threads of the kernels between numbers and bfloat16 do: with the bits of what the CPU
// does (server/update/matrix/newton_schulz.cc). A phase is a function of the arguments, block and
// thread; so a host can run all of it (tests).
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_HALVES_BODY_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_HALVES_BODY_H_

#include <cstdint>

#include "common/host_device.h"
#include "server/update/cuda/element_arrays.h"
#include "server/update/cuda/halves_arguments.h"
#include "server/update/cuda/span_search.h"
#include "server/update/norm_ratio.h"

namespace optshard {
namespace kernels {

using PlaceOfHalves = Place<1, kHalvesOfThread>;

// What a block does at a time: a tile of an array, or the end of it.
struct TileOfHalves {
  const HalvesSpan* span = nullptr;
  int64_t first = 0;
};

OPTSHARD_HOST_DEVICE inline TileOfHalves FindTile(const HalvesArguments& arguments, int64_t tile) {
  TileOfHalves found;
  found.span = &FindSpan(arguments, &HalvesSpan::tiles_before, tile);
  found.first = (tile - found.span->tiles_before) * kHalvesTile;
  return found;
}

OPTSHARD_HOST_DEVICE inline PlaceOfHalves PlaceInTile(const TileOfHalves& tile, int thread) {
  PlaceOfHalves place;
  place.first = tile.first + int64_t{thread} * kHalvesOfThread;
  place.left = tile.span->elements - place.first;
  place.is_whole = place.left >= kHalvesOfThread;
  return place;
}

// --- HalvesPhase::kScale

// The first phase, of one thread.
OPTSHARD_HOST_DEVICE inline double FactorOf(const TileOfHalves& tile) {
  return InverseNorm(tile.span->squares->squares, tile.span->eps);
}

// The second one, of every thread.
template <typename T>
OPTSHARD_HOST_DEVICE inline void SetHalves(const TileOfHalves& tile, double factor, int thread) {
  const PlaceOfHalves place = PlaceInTile(tile, thread);
  if (place.is_empty()) return;
  T numbers[kHalvesOfThread];
  LoadPlain<T>(tile.span->numbers, place, numbers);
  float scaled[kHalvesOfThread];
  OPTSHARD_UNROLL
  for (int k = 0; k < kHalvesOfThread; ++k) {
    scaled[k] = static_cast<float>(static_cast<double>(numbers[k]) * factor);
  }
  uint32_t words[kHalvesOfThread / 2];
  OPTSHARD_UNROLL
  for (int w = 0; w < kHalvesOfThread / 2; ++w) words[w] = NarrowBFloat16(scaled + 2 * w);
  if (place.is_whole) {
    StoreWords<2, true>(words, tile.span->halves, place);
  } else {
    StoreWords<2, false>(words, tile.span->halves, place);
  }
}

// --- HalvesPhase::kWiden

template <typename T>
OPTSHARD_HOST_DEVICE inline void SetNumbers(const TileOfHalves& tile, int thread) {
  const PlaceOfHalves place = PlaceInTile(tile, thread);
  if (place.is_empty()) return;
  uint32_t words[kHalvesOfThread / 2];
  if (place.is_whole) {
    LoadWords<2, true>(tile.span->halves, place, words);
  } else {
    LoadWords<2, false>(tile.span->halves, place, words);
  }
  float wide[kHalvesOfThread];
  OPTSHARD_UNROLL
  for (int w = 0; w < kHalvesOfThread / 2; ++w) WidenBFloat16(words[w], wide + 2 * w);
  T numbers[kHalvesOfThread];
  OPTSHARD_UNROLL
  for (int k = 0; k < kHalvesOfThread; ++k) numbers[k] = static_cast<T>(wide[k]);
  StorePlain<T>(numbers, tile.span->numbers, place);
}

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_HALVES_BODY_H_

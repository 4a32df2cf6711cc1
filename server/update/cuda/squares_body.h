// What the threads of the kernels of sums of squares do, in phases, between which they tell each
// other their sums: SumOfSquares (common/simd/norms.h), with its bits. A phase is a function of the
// arguments, block and thread; so a host can run all of it (tests).
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_SQUARES_BODY_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_SQUARES_BODY_H_

#include <cstdint>

#include "common/host_device.h"
#include "common/simd/norms.h"
#include "server/update/cuda/element_arrays.h"
#include "server/update/cuda/element_codes.h"
#include "server/update/cuda/element_corrections.h"
#include "server/update/cuda/span_search.h"
#include "server/update/cuda/squares_arguments.h"

namespace optshard {
namespace kernels {

// --- The first kernel: a sum for each block.

using PlaceOfSquares = Place<1, kSumsOfThread>;
constexpr int kRowOfSquares = kThreadsOfSquares * kSumsOfThread;

struct PartialSquares {
  double sums[kSumsOfThread] = {};
  int32_t not_finite = 0;
};

struct BlockOfSquares {
  const SquaresSpan* span = nullptr;
  int64_t first = 0;  // element of the span
  int64_t elements = 0;
};

OPTSHARD_HOST_DEVICE inline int64_t BlocksOf(int64_t elements) {
  return (elements + kNormBlock - 1) / kNormBlock;
}

OPTSHARD_HOST_DEVICE inline BlockOfSquares FindBlock(const SquaresArguments& arguments,
                                                     int64_t block) {
  const SquaresSpan& span = FindSpan(arguments, &SquaresSpan::blocks_before, block);
  BlockOfSquares found;
  found.span = &span;
  const int64_t index = block - span.blocks_before;
  const int64_t of_period = BlocksOf(span.period);
  const int64_t begin = index / of_period * span.period;
  found.first = begin + index % of_period * kNormBlock;
  const int64_t all = span.elements - begin;
  const int64_t left = (all < span.period ? all : span.period) - (found.first - begin);
  found.elements = left < kNormBlock ? left : kNormBlock;
  return found;
}

// The elements that a thread of the block's takes in a row of 16.
OPTSHARD_HOST_DEVICE inline PlaceOfSquares PlaceInRow(const BlockOfSquares& block, int row,
                                                      int thread) {
  const int64_t in_block = int64_t{row} * kRowOfSquares + thread * kSumsOfThread;
  PlaceOfSquares place;
  place.first = block.first + in_block;
  place.left = block.elements - in_block;
  place.is_whole = block.span->is_aligned && place.Has(0, kSumsOfThread - 1);
  return place;
}

OPTSHARD_HOST_DEVICE inline void AddSquare(double value, int k, PartialSquares& partial) {
  partial.sums[k] += value * value;
  // Infinity less itself is no number, as what is none.
  partial.not_finite += value - value == 0 ? 0 : 1;
}

template <ArrayKind kKind, bool kWhole>
OPTSHARD_HOST_DEVICE inline void AddRow(const SquaresSpan& span, const PlaceOfSquares& place,
                                        PartialSquares& partial) {
  if constexpr (kKind == ArrayKind::kFloat64) {
    double values[kSumsOfThread];
    LoadPlain<double>(span.values.values, place, values);
    OPTSHARD_UNROLL
    for (int k = 0; k < kSumsOfThread; ++k) AddSquare(values[k], k, partial);
  } else {
    uint32_t words[kSumsOfThread];
    float values[kSumsOfThread];
    LoadAs<kKind, kWhole>(span.values, place, words);
    Widened<kKind, kSumsOfThread>(span.values, words, values);
    if (kKind != ArrayKind::kFloat32 && span.corrections != nullptr) {
      uint32_t corrections[1];
      LoadWords<1, kWhole>(span.corrections, place, corrections);
      OPTSHARD_UNROLL
      for (int k = 0; k < kSumsOfThread; ++k) {
        values[k] = CorrectedBy(kKind, values[k], static_cast<int8_t>(CodeIn(corrections, k)));
      }
    }
    OPTSHARD_UNROLL
    for (int k = 0; k < kSumsOfThread; ++k) AddSquare(values[k], k, partial);
  }
}

template <ArrayKind kKind>
OPTSHARD_HOST_DEVICE inline PartialSquares AddRows(const BlockOfSquares& block, int thread) {
  const SquaresSpan span = *block.span;
  PartialSquares partial;
  if (span.is_aligned && block.elements == kNormBlock) {
    // Nearly all blocks: several rows are loaded at the same time.
    constexpr int kRows = static_cast<int>(kNormBlock) / kRowOfSquares;
    for (int row = 0; row < kRows; ++row) {
      AddRow<kKind, true>(span, PlaceInRow(block, row, thread), partial);
    }
    return partial;
  }
  for (int row = 0;; ++row) {
    // Elements that there are not are zeros, which add nothing.
    const PlaceOfSquares place = PlaceInRow(block, row, thread);
    if (place.is_empty()) return partial;
    AddRow<kKind, false>(span, place, partial);
  }
}

// The first phase.
OPTSHARD_HOST_DEVICE inline PartialSquares PartOfBlock(const SquaresArguments& arguments,
                                                       int64_t block, int thread) {
  if (block >= arguments.blocks) return PartialSquares();
  const BlockOfSquares at = FindBlock(arguments, block);
  switch (at.span->values.kind) {
    case ArrayKind::kFloat64:
      return AddRows<ArrayKind::kFloat64>(at, thread);
    case ArrayKind::kFloat16:
      return AddRows<ArrayKind::kFloat16>(at, thread);
    case ArrayKind::kBFloat16:
      return AddRows<ArrayKind::kBFloat16>(at, thread);
    default:
      return AddRows<ArrayKind::kFloat32>(at, thread);
  }
}

// The second and the third phase: threads add what those have that are two and one after them.
OPTSHARD_HOST_DEVICE inline void AddPart(const PartialSquares& other, PartialSquares& own) {
  OPTSHARD_UNROLL
  for (int k = 0; k < kSumsOfThread; ++k) own.sums[k] += other.sums[k];
  own.not_finite += other.not_finite;
}

// The last phase, of the first thread.
OPTSHARD_HOST_DEVICE inline SumOfSquaresOnDevice SumOfBlock(const PartialSquares& partial) {
  SumOfSquaresOnDevice sum;
  sum.squares = (partial.sums[0] + partial.sums[2]) + (partial.sums[1] + partial.sums[3]);
  sum.not_finite = partial.not_finite;
  return sum;
}

// --- The second kernel: the blocks of each span, in order, a tile at a time.

OPTSHARD_HOST_DEVICE inline int64_t BlocksOfSpan(const SquaresSpan& span) {
  if (span.elements == 0) return 0;
  return span.elements / span.period * BlocksOf(span.period) +
         BlocksOf(span.elements % span.period);
}

// The first phase of a tile, of every thread: it is copied to where it is near.
OPTSHARD_HOST_DEVICE inline void LoadTile(const SquaresArguments& arguments, int32_t span,
                                          int64_t tile, int thread, SumOfSquaresOnDevice* to) {
  const SquaresSpan& of = arguments.spans[span];
  const int64_t begin = tile * kSquaresTile;
  const SumOfSquaresOnDevice* const from = arguments.of_blocks + of.blocks_before + begin;
  for (int64_t k = thread; k < kSquaresTile && begin + k < BlocksOfSpan(of); k += kKernelThreads) {
    to[k] = from[k];
  }
}

// The second one, of one thread.
OPTSHARD_HOST_DEVICE inline void AddTile(const SquaresArguments& arguments, int32_t span,
                                         int64_t tile, const SumOfSquaresOnDevice* from,
                                         SumOfSquaresOnDevice& sum) {
  const int64_t left = BlocksOfSpan(arguments.spans[span]) - tile * kSquaresTile;
  const int count = static_cast<int>(left < kSquaresTile ? left : kSquaresTile);
  for (int k = 0; k < count; ++k) {
    sum.squares += from[k].squares;
    sum.not_finite += from[k].not_finite;
  }
}

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_SQUARES_BODY_H_

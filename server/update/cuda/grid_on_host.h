// Runs the bodies of element_wise_body.h on the host: a whole grid, block by block, in each block
// phase by phase, in each phase thread by thread. For tests.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_GRID_ON_HOST_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_GRID_ON_HOST_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "server/update/cuda/element_wise_body.h"
#include "server/update/cuda/formula_kernels.h"

namespace optshard {
namespace kernels {

template <class Formula, typename T, SlotSet kSlots>
struct PlainGrid {
  int Launch(const KernelArguments<T>& arguments, const KernelGrid& grid) const {
    for (int64_t block = 0; block < grid.blocks; ++block) {
      for (int thread = 0; thread < kKernelThreads; ++thread) {
        PlainBody<Formula, T, kSlots>::Run(arguments, {thread, block, grid.blocks});
      }
    }
    return 0;
  }
  int BlocksPerMultiprocessor() const { return 1; }
};

template <class Formula, SlotSet kSlots, KernelPass kPass>
struct MixedGrid {
  using Body = MixedBody<Formula, kSlots, kPass>;

  int Launch(const KernelArguments<float>& arguments, const KernelGrid& grid) const {
    if (IsSkipped(arguments)) return 0;
    for (int64_t block = 0; block < grid.blocks; ++block) RunBlock(arguments, block, grid.blocks);
    return 0;
  }
  int BlocksPerMultiprocessor() const { return 1; }

 private:
  struct Thread {
    typename Body::Place place;
    typename Body::Carried carried;
  };
  using Threads = std::vector<Thread>;

  static void RunBlock(const KernelArguments<float>& arguments, int64_t block, int64_t blocks) {
    CodeTable tables[kCodeTables];
    for (int thread = 0; thread < kKernelThreads && HasCodes(kPass); ++thread) {
      Body::Begin(arguments.tables, thread, tables);
    }
    Threads threads(kKernelThreads);
    for (int64_t chunk = block; chunk < arguments.chunks; chunk += blocks) {
      const ChunkPlace at = FindChunk(arguments, chunk, ChunkElements<float>(kPass));
      const Constants<Scalar> constants(CoefficientsOf(arguments, *at.span));
      for (int unit = 0; unit < kUnitsPerChunk; ++unit) {
        for (int thread = 0; thread < kKernelThreads; ++thread) {
          Thread& here = threads[thread];
          here.place = PlaceOf<typename Body::Place>(*at.span, at.first, unit, thread);
          Body::Update(constants, *at.span, here.place, tables, here.carried);
        }
        for (int s = 0; s < Body::SlotsOf::kCount && HasCodes(kPass); ++s) {
          if (Body::IsCodedSlot(at.span->slots[s])) Encode(at.span->slots[s], s, tables, threads);
        }
      }
    }
  }

  static void Encode(const KernelArray& array, int s, const CodeTable* tables,
                     const Threads& threads) {
    const int together = Body::ThreadsOfBlock(array.kind);
    for (int first = 0; first < kKernelThreads; first += together) {
      uint32_t largest[2] = {0, 0};
      for (int thread = first; thread < first + together; ++thread) {
        for (int group = 0; group < 2; ++group) {
          uint32_t& of_block = largest[IsDynamic(array.kind) ? 0 : group];
          of_block = std::max(
              of_block, Body::LargestOf(threads[thread].place, threads[thread].carried, s, group));
        }
      }
      if (IsDynamic(array.kind)) largest[1] = largest[0];
      for (int thread = first; thread < first + together; ++thread) {
        Body::Encode(array, threads[thread].place, tables, threads[thread].carried, s, largest);
      }
    }
  }
};

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_GRID_ON_HOST_H_

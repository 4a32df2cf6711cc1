// Runs the bodies of element_wise_body.h on the host: a whole grid, block by block, in each block
// phase by phase, in each phase thread by thread. For tests.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_GRID_ON_HOST_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_GRID_ON_HOST_H_

#include <cstdint>
#include <memory>
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

template <class Formula, SlotSet kSlots, bool kCoded>
struct MixedGrid {
  using Body = MixedBody<Formula, kSlots, kCoded>;

  int Launch(const KernelArguments<float>& arguments, const KernelGrid& grid) const {
    for (int64_t block = 0; block < grid.blocks; ++block) RunBlock(arguments, block, grid.blocks);
    return 0;
  }
  int BlocksPerMultiprocessor() const { return 1; }

 private:
  static void RunBlock(const KernelArguments<float>& arguments, int64_t block, int64_t blocks) {
    const auto shared = std::make_unique<typename Body::Shared>();
    std::vector<typename Body::Carried> carried(kKernelThreads);
    const auto for_each_thread = [&](auto phase) {
      for (int thread = 0; thread < kKernelThreads; ++thread) {
        phase(GridPlace{thread, block, blocks}, carried[thread]);
      }
    };
    for_each_thread([&](const GridPlace& place, typename Body::Carried&) {
      Body::Begin(arguments, place, *shared);
    });
    const int64_t units = Body::UnitsOf(arguments, {0, block, blocks});
    for (int64_t unit = 0; unit < units; ++unit) {
      for_each_thread([&](const GridPlace& place, typename Body::Carried& of_thread) {
        Body::Update(arguments, place, unit, *shared, of_thread);
      });
      if constexpr (kCoded) {
        for_each_thread([&](const GridPlace& place, typename Body::Carried& of_thread) {
          Body::Encode(place, unit, *shared, of_thread);
        });
      }
    }
  }
};

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_GRID_ON_HOST_H_

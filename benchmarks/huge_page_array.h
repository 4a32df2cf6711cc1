// Large arrays for measurements, in huge pages where the machine gives them.
#ifndef OPTSHARD_BENCHMARKS_HUGE_PAGE_ARRAY_H_
#define OPTSHARD_BENCHMARKS_HUGE_PAGE_ARRAY_H_

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace optshard {

struct FreeHugePages {
  void operator()(float* memory) const { std::free(memory); }
};
using HugePageArray = std::unique_ptr<float[], FreeHugePages>;

// Every page is touched. Throws std::bad_alloc.
HugePageArray MakeHugePageArray(int64_t elements, float value);

}  // namespace optshard

#endif  // OPTSHARD_BENCHMARKS_HUGE_PAGE_ARRAY_H_

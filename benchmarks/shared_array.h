// Large arrays in memory of the kind that processes share: a memfd, in 4 KiB pages unless the
// machine's administrator allows larger ones there.
#ifndef OPTSHARD_BENCHMARKS_SHARED_ARRAY_H_
#define OPTSHARD_BENCHMARKS_SHARED_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace optshard {

struct UnmapShared {
  size_t bytes = 0;
  void operator()(float* memory) const;
};
using SharedArray = std::unique_ptr<float[], UnmapShared>;

// Every page is touched. Throws std::bad_alloc.
SharedArray MakeSharedArray(int64_t elements, float value);

}  // namespace optshard

#endif  // OPTSHARD_BENCHMARKS_SHARED_ARRAY_H_

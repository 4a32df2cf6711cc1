#include "benchmarks/huge_page_array.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace optshard {
namespace {

constexpr size_t kHugePageBytes = 2 << 20;

}  // namespace

HugePageArray MakeHugePageArray(int64_t elements, float value) {
  const size_t bytes = (elements * sizeof(float) / kHugePageBytes + 1) * kHugePageBytes;
  HugePageArray array(static_cast<float*>(std::aligned_alloc(kHugePageBytes, bytes)));
  if (array == nullptr) throw std::bad_alloc();
  // Only advice: without huge pages figures are a little higher.
  (void)madvise(array.get(), bytes, MADV_HUGEPAGE);
  std::fill_n(array.get(), elements, value);
  return array;
}

}  // namespace optshard

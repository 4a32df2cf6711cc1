#include "benchmarks/shared_array.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace optshard {

void UnmapShared::operator()(float* memory) const { munmap(memory, bytes); }

SharedArray MakeSharedArray(int64_t elements, float value) {
  const size_t bytes = std::max<size_t>(elements * sizeof(float), 1);
  const int descriptor = memfd_create("optshard-benchmark", MFD_CLOEXEC);
  if (descriptor < 0) throw std::bad_alloc();
  void* memory = MAP_FAILED;
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) == 0) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  close(descriptor);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  SharedArray array(static_cast<float*>(memory), UnmapShared{bytes});
  std::fill_n(array.get(), elements, value);
  return array;
}

}  // namespace optshard

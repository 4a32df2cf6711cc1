// Lays out what the kernels between numbers and bfloat16 read, in memory that goes to a device.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_HALVES_TABLE_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_HALVES_TABLE_H_

#include <cstddef>
#include <vector>

#include "server/update/cuda/halves_arguments.h"

namespace optshard {

// Thread-compatible.
class HalvesTable {
 public:
  // `is_double`: what the numbers are, or float.
  explicit HalvesTable(bool is_double) : is_double_(is_double) {}

  // Of an array with elements; what is before it is filled in.
  void Add(HalvesSpan span);

  bool is_double() const { return is_double_; }
  // What is copied to the device, 16-byte aligned there.
  size_t bytes() const { return spans_.size() * sizeof(HalvesSpan); }
  void CopyTo(void* to) const;
  // For a copy that lies at `at`.
  HalvesArguments ArgumentsAt(const void* at) const;

 private:
  bool is_double_;
  std::vector<HalvesSpan> spans_;
  HalvesArguments all_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_HALVES_TABLE_H_

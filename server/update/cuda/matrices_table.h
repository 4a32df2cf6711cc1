// Lays out what the kernels of averages over rows and columns read, in memory that goes to a
// device.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_MATRICES_TABLE_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_MATRICES_TABLE_H_

#include <cstddef>
#include <vector>

#include "server/update/cuda/matrices_arguments.h"

namespace optshard {

// Thread-compatible.
class MatricesTable {
 public:
  // `is_double`: what all arrays are of, or float.
  explicit MatricesTable(bool is_double) : is_double_(is_double) {}

  // Of a parameter with elements; what is before it is filled in.
  void Add(MatricesSpan span);

  bool is_double() const { return is_double_; }
  // What is copied to the device, 16-byte aligned there.
  size_t bytes() const { return spans_.size() * sizeof(MatricesSpan); }
  void CopyTo(void* to) const;
  // For a copy that lies at `at`.
  MatricesArguments ArgumentsAt(const void* at) const;

 private:
  bool is_double_;
  std::vector<MatricesSpan> spans_;
  MatricesArguments all_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_MATRICES_TABLE_H_

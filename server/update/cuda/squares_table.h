// Lays out what the kernels of sums of squares read, and their sums, in memory that goes to a
// device.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_SQUARES_TABLE_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_SQUARES_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/buffer.h"
#include "server/update/cuda/squares_arguments.h"
#include "server/update/update_rule.h"

namespace optshard {

// Thread-compatible.
class SquaresTable {
 public:
  // The array lies in the device's memory. `corrections`: of 16-bit values, or null.
  void Add(ConstBuffer values, int64_t elements, const int8_t* corrections = nullptr);
  // The values that the update begins with: those of SumOfParameterSquares
  // (server/update/parameter_squares.h).
  void AddParameter(const SpanUpdate& span);

  // What is copied to the device, 16-byte aligned there.
  size_t bytes() const { return spans_.size() * sizeof(SquaresSpan); }
  void CopyTo(void* to) const;
  // What the kernels write to, 16-byte aligned.
  size_t bytes_of_sums() const;

  // For a copy that lies at `at`.
  SquaresArguments ArgumentsAt(const void* at, void* sums) const;

 private:
  std::vector<SquaresSpan> spans_;
  int64_t blocks_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_SQUARES_TABLE_H_

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
  struct Array {
    ConstBuffer values;  // in the device's memory
    int64_t elements = 0;
    // Of so many elements at a time SumOfSquares goes on from the sum of those before; 0: of all.
    int64_t period = 0;
    const int8_t* corrections = nullptr;  // of 16-bit values; null: they have none
  };
  void Add(const Array& array);
  // The values that the update begins with: those of SumOfParameterSquares
  // (server/update/parameter_squares.h).
  void AddParameter(const SpanUpdate& span, int64_t period = 0);

  // What is copied to the device, 16-byte aligned there.
  size_t bytes() const { return spans_.size() * sizeof(SquaresSpan); }
  void CopyTo(void* to) const;
  // What the kernels write to, 16-byte aligned.
  size_t bytes_of_sums() const;
  size_t bytes_of_blocks() const;  // of those, where the spans' are not wanted

  // Where those of the spans lie in that memory.
  SumOfSquaresOnDevice* SpansIn(void* sums) const {
    return static_cast<SumOfSquaresOnDevice*>(sums) + blocks_;
  }

  // For a copy that lies at `at`.
  SquaresArguments ArgumentsAt(const void* at, void* sums) const;

 private:
  std::vector<SquaresSpan> spans_;
  int64_t blocks_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_SQUARES_TABLE_H_

// Arrays whose squares are added, in every type, at odd sizes and alignments, and the CPU's sums.
#ifndef OPTSHARD_TESTS_SERVER_UPDATE_CUDA_SQUARES_JOBS_H_
#define OPTSHARD_TESTS_SERVER_UPDATE_CUDA_SQUARES_JOBS_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "server/update/cuda/squares_arguments.h"
#include "server/update/cuda/squares_table.h"
#include "server/update/update_rule.h"

namespace optshard::testing {

struct SquaresShape {
  std::vector<int64_t> elements;  // of each array
  bool aligned = true;            // or they begin anywhere
  bool specials = false;          // infinities, NaN and denormals among them
};

// Sizes around the ends of rows, blocks and tiles.
std::vector<SquaresShape> SquaresShapes();

// Arrays of all types, some of 16-bit ones with corrections, and some with periods.
// Thread-compatible.
class SquaresJob {
 public:
  SquaresJob(const SquaresShape& shape, uint32_t seed);

  const std::vector<char>& memory() const { return memory_; }
  // Over a copy of memory() at `at`, 64-byte aligned.
  SquaresTable TableAt(void* at) const;
  // "" where these are the CPU's sums of memory(), by array: their bits, where any NaN equals any
  // NaN. Otherwise which array, and both sums.
  std::string Difference(const SumOfSquaresOnDevice* sums) const;

 private:
  struct Array {
    DType dtype = DType::kFloat32;
    int64_t offset = 0;
    int64_t correction = -1;  // none
    int64_t elements = 0;
    int64_t period = 0;  // SquaresTable::Array's
  };

  int64_t Reserve(int64_t bytes, size_t element_bytes, bool aligned);
  SpanUpdate SpanAt(char* at, const Array& array) const;

  std::mt19937 random_;
  std::vector<char> memory_;
  std::vector<Array> arrays_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_UPDATE_CUDA_SQUARES_JOBS_H_

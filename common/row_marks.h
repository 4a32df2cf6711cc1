// Which rows of its parameter a sparse gradient has: a bit for each row, in 64-bit words. A row is
// what has one index in the parameter's first dimension.
#ifndef OPTSHARD_COMMON_ROW_MARKS_H_
#define OPTSHARD_COMMON_ROW_MARKS_H_

#include <cstddef>
#include <cstdint>

#include "common/parameter_space.h"

namespace optshard {

constexpr int64_t kRowsPerWord = 64;

// 0 where a gradient is always dense: of one dimension or none, and without elements.
inline int64_t RowsOf(const ParameterSpec& parameter) {
  return parameter.shape.size() < 2 || parameter.elements() == 0 ? 0 : parameter.shape[0];
}

inline size_t RowMarkWords(int64_t rows) {
  return static_cast<size_t>((rows + kRowsPerWord - 1) / kRowsPerWord);
}

inline bool HasRow(const uint64_t* marks, int64_t row) {
  return ((marks[row / kRowsPerWord] >> (row % kRowsPerWord)) & 1) != 0;
}

inline void MarkRow(uint64_t* marks, int64_t row) {
  marks[row / kRowsPerWord] |= uint64_t{1} << (row % kRowsPerWord);
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_ROW_MARKS_H_

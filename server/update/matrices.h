// A parameter's last two dimensions as matrices, for rules that work on their rows and columns.
#ifndef OPTSHARD_SERVER_UPDATE_MATRICES_H_
#define OPTSHARD_SERVER_UPDATE_MATRICES_H_

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "common/checked_math.h"
#include "common/memory_layout.h"
#include "common/parameter_space.h"
#include "common/simd/norms.h"

namespace optshard {

// Elements that are gone through while they are in the second-level cache.
constexpr int64_t kMatrixChunk = 16 * kNormBlock;

// Whether a parameter of that shape has two or more dimensions, and elements.
inline bool HasMatrices(absl::Span<const int64_t> shape) {
  return shape.size() >= 2 && ElementsOf(shape) > 0;
}

// The matrices of a shape that has some. Small ones are worked on several at a time, large ones
// some rows at a time: about kMatrixChunk elements. Follows from the shape alone.
struct Matrices {
  explicit Matrices(absl::Span<const int64_t> shape)
      : rows(shape[shape.size() - 2]),
        columns(shape[shape.size() - 1]),
        count(ElementsOf(shape) / (rows * columns)),
        at_a_time(std::min(count, std::max<int64_t>(kMatrixChunk / (rows * columns), 1))),
        rows_at_a_time(std::min(at_a_time * rows, std::max<int64_t>(kMatrixChunk / columns, 1))) {}

  int64_t rows;
  int64_t columns;
  int64_t count;
  int64_t at_a_time;
  int64_t rows_at_a_time;  // all rows of at_a_time matrices, or some of one
};

// What an update of a parameter computes with, in SpanUpdate::workspace. T is the type that it
// computes in. Does not own the memory. Thread-compatible.
template <typename T>
class MatrixWorkspace {
 public:
  // `memory` null: only bytes() counts. A parameter without matrices has `elements` alone.
  MatrixWorkspace(void* memory, absl::Span<const int64_t> shape)
      : begin_(static_cast<char*>(memory)) {
    elements = Take<T>(ElementsOf(shape));
    if (!HasMatrices(shape)) return;
    const Matrices matrices(shape);
    row_sums = Take<double>(matrices.rows_at_a_time);
    column_sums = Take<double>(matrices.at_a_time * matrices.columns);
    row_averages = Take<T>(matrices.at_a_time * matrices.rows);
    column_averages = Take<T>(matrices.at_a_time * matrices.columns);
  }

  T* elements = nullptr;  // all of the parameter
  // Of the rows and the matrices that are worked on at a time.
  double* row_sums = nullptr;
  double* column_sums = nullptr;
  T* row_averages = nullptr;
  T* column_averages = nullptr;

  int64_t bytes() const { return bytes_; }

 private:
  template <typename Value>
  Value* Take(int64_t count) {
    void* const taken = begin_ == nullptr ? nullptr : begin_ + bytes_;
    bytes_ = SaturatingAdd(bytes_, SaturatingMultiply<int64_t>(count, sizeof(Value)));
    bytes_ = SaturatingAdd(bytes_, kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    return static_cast<Value*>(taken);
  }

  char* const begin_;
  int64_t bytes_ = 0;
};

// For `count` elements from number `begin` on of the matrices that the workspace has averages of:
// each the product of those of its row and its column.
template <typename T>
void ProductsOfAverages(const Matrices& matrices, int64_t begin, int64_t count,
                        const MatrixWorkspace<T>& workspace, T* products) {
  int64_t row = begin / matrices.columns;
  int64_t column = begin % matrices.columns;
  int64_t row_of_matrix = row % matrices.rows;
  const T* columns = workspace.column_averages + row / matrices.rows * matrices.columns;
  for (int64_t i = 0; i < count; column = 0) {
    const T of_row = workspace.row_averages[row++];
    const int64_t end = std::min(count, i + matrices.columns - column);
    while (i < end) products[i++] = of_row * columns[column++];
    if (++row_of_matrix == matrices.rows) {
      row_of_matrix = 0;
      columns += matrices.columns;
    }
  }
}

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_MATRICES_H_

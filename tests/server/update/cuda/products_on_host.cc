#include "tests/server/update/cuda/products_on_host.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/update/matrix/onednn_loader.h"
#include "tests/server/update/rule_cases.h"

namespace optshard::testing {
namespace {

// A matrix that lies row by row.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<uint16_t> values;
};

Matrix MatrixAt(const DeviceMatrices& matrices, int64_t index, int64_t rows, int64_t columns) {
  const auto* const from = static_cast<const uint16_t*>(matrices.data) + index * matrices.stride;
  return {rows, columns, std::vector<uint16_t>(from, from + rows * columns)};
}

Matrix Transposed(const Matrix& matrix) {
  Matrix result = {matrix.columns, matrix.rows, std::vector<uint16_t>(matrix.values.size())};
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (int64_t k = 0; k < matrix.columns; ++k) {
      result.values[k * matrix.rows + i] = matrix.values[i * matrix.columns + k];
    }
  }
  return result;
}

// scale * a b + keep * c; of a and the transposed b where `b_transposed`.
absl::StatusOr<Matrix> Multiplied(const Matrix& a, const Matrix& b, bool b_transposed,
                                  const Matrix& c, float scale, float keep) {
  MatrixProductSpec spec;
  spec.rows = c.rows;
  spec.columns = c.columns;
  spec.inner = a.columns;
  spec.b_transposed = b_transposed;
  spec.scale = scale;
  spec.adds = keep != 0;
  if (spec.adds) spec.keep = keep;
  const auto product = FindMatrixProduct(spec);
  if (!product.ok()) return product.status();
  Matrix result = c;
  AlignedFloats scratch((*product)->scratch_bytes() / sizeof(float) + 1);
  (*product)->Run(a.values.data(), b.values.data(), result.values.data(), scratch.data());
  return result;
}

}  // namespace

absl::Status RunProductOnHost(const DeviceProduct& product) {
  const ProductShape& shape = product.shape;
  for (int64_t i = 0; i < shape.count; ++i) {
    const Matrix a = shape.a_transposed
                         ? Transposed(MatrixAt(product.a, i, shape.inner, shape.rows))
                         : MatrixAt(product.a, i, shape.rows, shape.inner);
    const Matrix b = shape.b_transposed ? MatrixAt(product.b, i, shape.columns, shape.inner)
                                        : MatrixAt(product.b, i, shape.inner, shape.columns);
    const Matrix c =
        MatrixAt(product.keep == 0 ? product.d : product.c, i, shape.rows, shape.columns);
    absl::StatusOr<Matrix> result;
    if (shape.a_transposed) {
      // A square of columns.
      result = Multiplied(a, Transposed(b), true, c, product.scale, product.keep);
    } else if (shape.rows > shape.columns) {
      result = Multiplied(shape.b_transposed ? b : Transposed(b), Transposed(a), false,
                          Transposed(c), product.scale, product.keep);
      if (result.ok()) result = Transposed(*result);
    } else {
      result = Multiplied(a, b, shape.b_transposed, c, product.scale, product.keep);
    }
    if (!result.ok()) return result.status();
    std::copy(result->values.begin(), result->values.end(),
              static_cast<uint16_t*>(product.d.data) + i * product.d.stride);
  }
  return absl::OkStatus();
}

}  // namespace optshard::testing

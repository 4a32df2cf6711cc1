// Products of matrices, computed by a library.
#ifndef OPTSHARD_SERVER_UPDATE_MATRIX_MATRIX_PRODUCT_H_
#define OPTSHARD_SERVER_UPDATE_MATRIX_MATRIX_PRODUCT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/dtype.h"

namespace optshard {

// c = scale * a b, or, where it adds, c = scale * a b + keep * c. Matrices lie row by row, without
// gaps. a and b are bfloat16; sums are float32, and are rounded once to c's type.
struct MatrixProductSpec {
  int64_t rows = 0;     // of c
  int64_t columns = 0;  // of c
  int64_t inner = 0;    // columns of a, rows of b
  // The matrix that lies in memory is the transposed one: inner x rows, or columns x inner.
  bool a_transposed = false;
  bool b_transposed = false;
  DType result = DType::kBFloat16;  // or kFloat32
  float scale = 1;
  bool adds = false;
  float keep = 1;
};

// Immutable and thread-safe. Computes in the calling thread alone, which wants the default
// floating-point mode. The bits are the same in every call on one type of CPU; another type may
// sum in another order.
class MatrixProduct {
 public:
  virtual ~MatrixProduct() = default;

  // How much memory Run needs beside the matrices.
  virtual int64_t scratch_bytes() const = 0;

  // Arrays need only natural alignment. c and scratch overlap neither each other nor a nor b.
  // `scratch` is 64-byte aligned, with any content.
  virtual void Run(const void* a, const void* b, void* c, void* scratch) const = 0;
};

// What the shared object with the library exports. The extents are at least 1. INTERNAL with the
// library's message where it cannot compute such a product.
using MakeMatrixProductFunction = void (*)(const MatrixProductSpec& spec,
                                           std::shared_ptr<const MatrixProduct>* product,
                                           absl::Status* status);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_MATRIX_MATRIX_PRODUCT_H_

// Makes the directions of a matrix orthogonal, nearly, by a polynomial iteration: Muon's.
#ifndef OPTSHARD_SERVER_UPDATE_MATRIX_NEWTON_SCHULZ_H_
#define OPTSHARD_SERVER_UPDATE_MATRIX_NEWTON_SCHULZ_H_

#include <cstdint>

#include "common/buffer.h"

namespace optshard {

// x becomes a x + (b g + c g g) x, where g = x xT, in each of `steps` iterations.
struct NewtonSchulz {
  int64_t rows = 0;
  int64_t columns = 0;
  float a = 0;
  float b = 0;
  float c = 0;
  int steps = 0;
  double eps = 0;  // the least norm that the matrix is divided by at first

  // Of the memory that Run computes in. 0 where oneDNN cannot be loaded.
  static int64_t WorkspaceBytes(int64_t rows, int64_t columns);

  // Divides `matrix`, of float32 or float64, by its Frobenius norm and iterates in bfloat16, on the
  // shorter side. Returns the result, a matrix of bfloat16 for float32 and of float64 otherwise, in
  // `matrix` or in `workspace`; what was in `matrix` is lost. Both are 64-byte aligned. The matrix
  // has elements, and oneDNN is loaded; a product that it cannot make ends the process. Wants the
  // default floating-point mode. Thread-safe.
  ConstBuffer Run(Buffer matrix, void* workspace) const;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_MATRIX_NEWTON_SCHULZ_H_

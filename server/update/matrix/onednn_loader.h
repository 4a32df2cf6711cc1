// Products of matrices by oneDNN, which lives in a shared object of its own
// (docs/decisions/0012-onednn-in-its-own-shared-object.md).
#ifndef OPTSHARD_SERVER_UPDATE_MATRIX_ONEDNN_LOADER_H_
#define OPTSHARD_SERVER_UPDATE_MATRIX_ONEDNN_LOADER_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/update/matrix/matrix_product.h"

namespace optshard {

// Loads oneDNN if that has not been done. FAILED_PRECONDITION as LoadIsolated. Thread-safe.
absl::Status LoadOneDnn();

// Makes the product, or gives one that was made before: making takes a fraction of a millisecond.
// Errors as LoadOneDnn and MakeMatrixProductFunction. Thread-safe.
absl::StatusOr<std::shared_ptr<const MatrixProduct>> FindMatrixProduct(
    const MatrixProductSpec& spec);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_MATRIX_ONEDNN_LOADER_H_

// cuBLASLt, loaded when it is first wanted.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_CUBLAS_LT_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_CUBLAS_LT_H_

#include <cublasLt.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace optshard {

struct CublasLtFunctions {
  decltype(&cublasLtGetStatusString) get_status_string = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) matrix_layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) matrix_layout_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) matrix_layout_set_attribute = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set_attribute = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) algo_get_heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) algo_check = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;

  // OK, or INTERNAL with the library's words; RESOURCE_EXHAUSTED, UNIMPLEMENTED where it says so.
  // `what` was being done.
  absl::Status StatusOf(cublasStatus_t result, absl::string_view what) const;
};

// From that file, or from what the dynamic loader finds of the major version that this program was
// built with. FAILED_PRECONDITION where it cannot be loaded, or has not all functions. Needs no
// driver yet. Thread-safe.
absl::StatusOr<CublasLtFunctions> LoadCublasLt(const std::string& file);

// The process's. Likewise.
const absl::StatusOr<CublasLtFunctions>& CublasLt();

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_CUBLAS_LT_H_

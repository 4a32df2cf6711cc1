#include "server/update/cuda/cublas_lt.h"

#include "absl/strings/str_cat.h"
#include "common/cuda/library_functions.h"

namespace optshard {

absl::Status CublasLtFunctions::StatusOf(cublasStatus_t result, absl::string_view what) const {
  if (result == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat("cuBLASLt, ", what, ": ", get_status_string(result));
  switch (result) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::ResourceExhaustedError(text);
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return absl::UnimplementedError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::StatusOr<CublasLtFunctions> LoadCublasLt(const std::string& file) {
  const std::string own = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  LibraryFunctions library(
      {file.empty() ? own : file, "cuBLASLt", absl::StrCat(CUBLAS_VER_MAJOR, ".0 or later"),
       absl::StrCat("it multiplies matrices on GPUs; install CUDA ", CUBLAS_VER_MAJOR,
                    "'s libcublas where the dynamic loader finds ", own)});
  CublasLtFunctions functions;
  library.Find("cublasLtGetStatusString", &functions.get_status_string);
  library.Find("cublasLtCreate", &functions.create);
  library.Find("cublasLtDestroy", &functions.destroy);
  library.Find("cublasLtMatmulDescCreate", &functions.matmul_desc_create);
  library.Find("cublasLtMatmulDescDestroy", &functions.matmul_desc_destroy);
  library.Find("cublasLtMatmulDescSetAttribute", &functions.matmul_desc_set_attribute);
  library.Find("cublasLtMatrixLayoutCreate", &functions.matrix_layout_create);
  library.Find("cublasLtMatrixLayoutDestroy", &functions.matrix_layout_destroy);
  library.Find("cublasLtMatrixLayoutSetAttribute", &functions.matrix_layout_set_attribute);
  library.Find("cublasLtMatmulPreferenceCreate", &functions.preference_create);
  library.Find("cublasLtMatmulPreferenceDestroy", &functions.preference_destroy);
  library.Find("cublasLtMatmulPreferenceSetAttribute", &functions.preference_set_attribute);
  library.Find("cublasLtMatmulAlgoGetHeuristic", &functions.algo_get_heuristic);
  library.Find("cublasLtMatmulAlgoCheck", &functions.algo_check);
  library.Find("cublasLtMatmul", &functions.matmul);
  if (!library.status().ok()) return library.status();
  return functions;
}

const absl::StatusOr<CublasLtFunctions>& CublasLt() {
  static const auto* const loaded = new absl::StatusOr<CublasLtFunctions>(LoadCublasLt(""));
  return *loaded;
}

}  // namespace optshard

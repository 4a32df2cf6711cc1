// Products of matrices on a GPU.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_CUBLAS_PRODUCTS_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_CUBLAS_PRODUCTS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/cuda_memory.h"
#include "server/update/cuda/cublas_lt.h"
#include "server/update/cuda/device_product.h"

namespace optshard {

// By cuBLASLt, on tensor cores. Equal products on GPUs of one model, with one version of the
// library, are to have equal bits, however many of their shape are computed at once: the algorithm
// is that of one. Those of a CPU are summed in another order. Thread-compatible.
class CublasProducts {
 public:
  // With memory of the device of that index. FAILED_PRECONDITION where the library cannot be
  // loaded; what CurrentDevice says; RESOURCE_EXHAUSTED; the library's error.
  static absl::StatusOr<std::unique_ptr<CublasProducts>> Create(int device);
  ~CublasProducts();
  CublasProducts(const CublasProducts&) = delete;
  CublasProducts& operator=(const CublasProducts&) = delete;

  // The others are called where the device is the current one.

  // Chooses how such products are computed, unless it is known. The library's error.
  absl::Status Prepare(const DeviceProduct& product);

  // Prepares it, too. What it computes in is shared: no two are under way on streams that are not
  // ordered. INTERNAL, or the device's error: some of the products may be under way then.
  absl::Status Enqueue(const DeviceProduct& product, cudaStream_t stream);

 private:
  template <class Object>
  using Owned = std::unique_ptr<Object, cublasStatus_t (*)(Object*)>;
  // The library has columns where we have rows: it computes the transposed product, of the
  // transposed b and a.
  struct Layouts {
    Owned<cublasLtMatrixLayoutOpaque_t> a;
    Owned<cublasLtMatrixLayoutOpaque_t> b;
    Owned<cublasLtMatrixLayoutOpaque_t> c;
    Owned<cublasLtMatrixLayoutOpaque_t> d;
  };
  struct Plan {
    Owned<cublasLtMatmulDescOpaque_t> operation;
    int64_t at_once = 1;  // products: all of them, or one
    Layouts layouts;      // of those
    cublasLtMatmulAlgo_t algorithm = {};
  };
  // Shape; strides; whether it adds.
  using Key = std::tuple<int64_t, int64_t, int64_t, bool, bool, int64_t, int64_t, int64_t, int64_t,
                         int64_t, bool>;

  CublasProducts(int device, const CublasLtFunctions& library, Owned<cublasLtContext> handle,
                 CudaMemory workspace)
      : device_(device),
        library_(library),
        handle_(std::move(handle)),
        workspace_(std::move(workspace)) {}

  static Key KeyOf(const DeviceProduct& product);
  absl::StatusOr<const Plan*> PlanOf(const DeviceProduct& product);
  absl::StatusOr<Plan> MakePlan(const DeviceProduct& product) const;
  absl::StatusOr<Owned<cublasLtMatmulDescOpaque_t>> Operation(bool a_transposed,
                                                              bool b_transposed) const;
  // Of a matrix that lies row by row.
  absl::StatusOr<Owned<cublasLtMatrixLayoutOpaque_t>> Layout(int64_t rows, int64_t columns,
                                                             int64_t count, int64_t stride) const;
  absl::StatusOr<Layouts> LayoutsOf(const DeviceProduct& product, int64_t count) const;
  absl::StatusOr<cublasLtMatmulAlgo_t> ChooseAlgorithm(cublasLtMatmulDesc_t operation,
                                                       const Layouts& layouts) const;

  const int device_;
  const CublasLtFunctions& library_;
  Owned<cublasLtContext> handle_;
  const CudaMemory workspace_;
  std::map<Key, Plan> plans_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_CUBLAS_PRODUCTS_H_

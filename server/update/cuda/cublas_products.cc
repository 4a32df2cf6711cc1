#include "server/update/cuda/cublas_products.h"

#include <cublasLt.h>

#include <string>

#include "absl/strings/str_format.h"
#include "common/cuda/cuda_status.h"
#include "common/cuda/current_device.h"
#include "common/errors.h"

namespace optshard {
namespace {

// What NVIDIA recommends for Hopper, which needs most.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
// Of DeviceMatrices.
constexpr uint32_t kAlignmentBytes = 64;
// Sums are not cut: which parts they are cut into may depend on more than the shape.
constexpr uint32_t kReductions = CUBLASLT_REDUCTION_SCHEME_NONE;

constexpr cudaDataType_t kHalf = CUDA_R_16BF;

std::string TextOf(const ProductShape& shape) {
  return absl::StrFormat("%d products of %d x %d and %d x %d", shape.count, shape.rows, shape.inner,
                         shape.inner, shape.columns);
}

void* At(const DeviceMatrices& matrices, int64_t index) {
  return static_cast<uint16_t*>(matrices.data) + index * matrices.stride;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CublasProducts>> CublasProducts::Create(int device) {
  const absl::StatusOr<CublasLtFunctions>& library = CublasLt();
  if (!library.ok()) return library.status();
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  absl::StatusOr<CudaMemory> workspace = CudaMemory::OnDevice(kWorkspaceBytes);
  if (!workspace.ok()) {
    return errors::WithContext(workspace.status(), "the workspace of products of matrices");
  }
  cublasLtHandle_t handle = nullptr;
  const absl::Status created = library->StatusOf(library->create(&handle), "beginning");
  if (!created.ok()) return created;
  return std::unique_ptr<CublasProducts>(
      new CublasProducts(device, *library, {handle, library->destroy}, *std::move(workspace)));
}

CublasProducts::~CublasProducts() {
  // The library's handle is of the device.
  const CurrentDevice current(device_);
  handle_.reset();
}

absl::StatusOr<const CublasProducts::Plan*> CublasProducts::PlanOf(const DeviceProduct& product) {
  const Key key = KeyOf(product);
  const auto known = plans_.find(key);
  if (known != plans_.end()) return &known->second;
  absl::StatusOr<Plan> plan = MakePlan(product);
  if (!plan.ok()) return errors::WithContext(plan.status(), TextOf(product.shape));
  return &plans_.emplace(key, *std::move(plan)).first->second;
}

absl::Status CublasProducts::Prepare(const DeviceProduct& product) {
  return PlanOf(product).status();
}

absl::Status CublasProducts::Enqueue(const DeviceProduct& product, cudaStream_t stream) {
  const absl::StatusOr<const Plan*> found = PlanOf(product);
  if (!found.ok()) return found.status();
  const Plan& plan = **found;
  const DeviceMatrices& added = product.keep == 0 ? product.d : product.c;
  for (int64_t i = 0; i < product.shape.count; i += plan.at_once) {
    const cublasStatus_t result =
        library_.matmul(handle_.get(), plan.operation.get(), &product.scale, At(product.b, i),
                        plan.layouts.a.get(), At(product.a, i), plan.layouts.b.get(), &product.keep,
                        At(added, i), plan.layouts.c.get(), At(product.d, i), plan.layouts.d.get(),
                        &plan.algorithm, workspace_.data(), workspace_.bytes(), stream);
    if (result == CUBLAS_STATUS_SUCCESS) continue;
    // Where the device has failed, that says more.
    absl::Status failed = CudaStatus(cudaGetLastError(), "multiplying matrices");
    if (failed.ok()) {
      failed = absl::InternalError(library_.StatusOf(result, "enqueueing a product").message());
    }
    return errors::WithContext(failed, TextOf(product.shape));
  }
  return absl::OkStatus();
}

CublasProducts::Key CublasProducts::KeyOf(const DeviceProduct& product) {
  const ProductShape& shape = product.shape;
  return {shape.rows,         shape.columns,    shape.inner,      shape.a_transposed,
          shape.b_transposed, shape.count,      product.a.stride, product.b.stride,
          product.c.stride,   product.d.stride, product.keep != 0};
}

absl::StatusOr<CublasProducts::Plan> CublasProducts::MakePlan(const DeviceProduct& product) const {
  const ProductShape& shape = product.shape;
  auto operation = Operation(shape.b_transposed, shape.a_transposed);
  if (!operation.ok()) return operation.status();
  auto layouts = LayoutsOf(product, 1);
  if (!layouts.ok()) return layouts.status();
  // Chosen for one, and used for all: what an owner computes does not depend on how many it owns.
  const auto algorithm = ChooseAlgorithm(operation->get(), *layouts);
  if (!algorithm.ok()) return algorithm.status();
  Plan plan = {*std::move(operation), 1, *std::move(layouts), *algorithm};
  // What has one row or column may be computed in another way than products of matrices.
  if (shape.count == 1 || shape.rows == 1 || shape.columns == 1) return plan;
  auto of_all = LayoutsOf(product, shape.count);
  if (!of_all.ok()) return of_all.status();
  cublasLtMatmulHeuristicResult_t checked = {};
  const cublasStatus_t fits =
      library_.algo_check(handle_.get(), plan.operation.get(), of_all->a.get(), of_all->b.get(),
                          of_all->c.get(), of_all->d.get(), &plan.algorithm, &checked);
  if (fits == CUBLAS_STATUS_SUCCESS && checked.state == CUBLAS_STATUS_SUCCESS &&
      checked.workspaceSize <= workspace_.bytes()) {
    plan.at_once = shape.count;
    plan.layouts = *std::move(of_all);
  }
  return plan;
}

absl::StatusOr<CublasProducts::Layouts> CublasProducts::LayoutsOf(const DeviceProduct& product,
                                                                  int64_t count) const {
  const ProductShape& shape = product.shape;
  auto a = shape.b_transposed ? Layout(shape.columns, shape.inner, count, product.b.stride)
                              : Layout(shape.inner, shape.columns, count, product.b.stride);
  if (!a.ok()) return a.status();
  auto b = shape.a_transposed ? Layout(shape.inner, shape.rows, count, product.a.stride)
                              : Layout(shape.rows, shape.inner, count, product.a.stride);
  if (!b.ok()) return b.status();
  auto c = Layout(shape.rows, shape.columns, count,
                  product.keep == 0 ? product.d.stride : product.c.stride);
  if (!c.ok()) return c.status();
  auto d = Layout(shape.rows, shape.columns, count, product.d.stride);
  if (!d.ok()) return d.status();
  return Layouts{*std::move(a), *std::move(b), *std::move(c), *std::move(d)};
}

absl::StatusOr<CublasProducts::Owned<cublasLtMatmulDescOpaque_t>> CublasProducts::Operation(
    bool a_transposed, bool b_transposed) const {
  cublasLtMatmulDesc_t made = nullptr;
  absl::Status status = library_.StatusOf(
      library_.matmul_desc_create(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  if (!status.ok()) return status;
  Owned<cublasLtMatmulDescOpaque_t> operation(made, library_.matmul_desc_destroy);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    status.Update(library_.StatusOf(
        library_.matmul_desc_set_attribute(made, attribute, &value, sizeof(value)),
        "describing a product"));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, a_transposed);
  set(CUBLASLT_MATMUL_DESC_TRANSB, b_transposed);
  if (!status.ok()) return status;
  return operation;
}

absl::StatusOr<CublasProducts::Owned<cublasLtMatrixLayoutOpaque_t>> CublasProducts::Layout(
    int64_t rows, int64_t columns, int64_t count, int64_t stride) const {
  cublasLtMatrixLayout_t made = nullptr;
  absl::Status status = library_.StatusOf(
      library_.matrix_layout_create(&made, kHalf, columns, rows, columns), "describing a matrix");
  if (!status.ok()) return status;
  Owned<cublasLtMatrixLayoutOpaque_t> layout(made, library_.matrix_layout_destroy);
  const auto batch = static_cast<int32_t>(count);
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
    status.Update(library_.StatusOf(
        library_.matrix_layout_set_attribute(made, attribute, &value, sizeof(value)),
        "describing a matrix"));
  };
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch);
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  if (!status.ok()) return status;
  return layout;
}

absl::StatusOr<cublasLtMatmulAlgo_t> CublasProducts::ChooseAlgorithm(cublasLtMatmulDesc_t operation,
                                                                     const Layouts& layouts) const {
  cublasLtMatmulPreference_t made = nullptr;
  absl::Status status =
      library_.StatusOf(library_.preference_create(&made), "describing what is preferred");
  if (!status.ok()) return status;
  const Owned<cublasLtMatmulPreferenceOpaque_t> preference(made, library_.preference_destroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    status.Update(
        library_.StatusOf(library_.preference_set_attribute(made, attribute, &value, sizeof(value)),
                          "describing what is preferred"));
  };
  const auto bytes = static_cast<uint64_t>(workspace_.bytes());
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes);
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductions);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(attribute, kAlignmentBytes);
  }
  if (!status.ok()) return status;
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  status = library_.StatusOf(
      library_.algo_get_heuristic(handle_.get(), operation, layouts.a.get(), layouts.b.get(),
                                  layouts.c.get(), layouts.d.get(), made, 1, &found, &count),
      "choosing an algorithm");
  if (!status.ok()) return status;
  if (count == 0) return absl::UnimplementedError("cuBLASLt has no algorithm for it");
  status = library_.StatusOf(found.state, "choosing an algorithm");
  if (!status.ok()) return status;
  return found.algo;
}

}  // namespace optshard

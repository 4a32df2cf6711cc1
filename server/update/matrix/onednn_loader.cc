#include "server/update/matrix/onednn_loader.h"

#include <map>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/isolated_object.h"

extern "C" const char optshard_onednn_begin[];
extern "C" const char optshard_onednn_end[];

namespace optshard {
namespace {

absl::StatusOr<MakeMatrixProductFunction> Load() {
  const absl::StatusOr<void*> entry = LoadIsolated({
      "optshard_onednn",
      {optshard_onednn_begin, static_cast<size_t>(optshard_onednn_end - optshard_onednn_begin)},
      "optshard_make_matrix_product",
      "oneDNN, which computes the products of matrices,",
      "oneDNN",
      "libdnnl2",
      // LibTorch hides its oneDNN's own names, but not those that are also std's. This one
      // prepares, once in a process, what products of float32 are computed with where there is no
      // AVX-512: with LibTorch's in its place, none could be computed.
      "_ZZNSt9once_flag18_Prepare_executionC4IZSt9call_onceIZN4dnnl4impl3cpu3x6411gemm_info_tIfffE8"
      "jit_initEvEUlvE_JEEvRS_OT_DpOT0_EUlvE_EERSB_ENUlvE_4_FUNEv",
  });
  if (!entry.ok()) return entry.status();
  return reinterpret_cast<MakeMatrixProductFunction>(*entry);
}

const absl::StatusOr<MakeMatrixProductFunction>& Loaded() {
  static const auto* const loaded = new absl::StatusOr<MakeMatrixProductFunction>(Load());
  return *loaded;
}

using Key = std::tuple<int64_t, int64_t, int64_t, bool, bool, DType, float, bool, float>;

Key KeyOf(const MatrixProductSpec& spec) {
  return {spec.rows,   spec.columns, spec.inner, spec.a_transposed, spec.b_transposed,
          spec.result, spec.scale,   spec.adds,  spec.keep};
}

// Never destroyed: threads that use products may outlive main.
struct Products {
  // More than a model has shapes of matrices, three products each. Where factors change from step
  // to step, those of old steps go with all others.
  static constexpr size_t kMost = 4096;

  absl::Mutex mutex;
  std::map<Key, std::shared_ptr<const MatrixProduct>> made ABSL_GUARDED_BY(mutex);

  static Products& Get() {
    static auto* const products = new Products;
    return *products;
  }
};

}  // namespace

absl::Status LoadOneDnn() { return Loaded().status(); }

absl::StatusOr<std::shared_ptr<const MatrixProduct>> FindMatrixProduct(
    const MatrixProductSpec& spec) {
  if (!Loaded().ok()) return Loaded().status();
  Products& products = Products::Get();
  const Key key = KeyOf(spec);
  {
    absl::MutexLock lock(&products.mutex);
    const auto found = products.made.find(key);
    if (found != products.made.end()) return found->second;
  }
  std::shared_ptr<const MatrixProduct> product;
  absl::Status status;
  (**Loaded())(spec, &product, &status);
  if (!status.ok()) return status;
  absl::MutexLock lock(&products.mutex);
  if (products.made.size() >= Products::kMost) products.made.clear();
  return products.made.emplace(key, std::move(product)).first->second;
}

}  // namespace optshard

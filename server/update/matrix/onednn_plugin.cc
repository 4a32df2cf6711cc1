// MatrixProduct over Debian's oneDNN: the source of the shared object.
#include <exception>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/dtype_conversion.h"
#include "server/update/matrix/matrix_product.h"

// Of OpenMP's interface; its header belongs to the compiler, and clang's is not there.
extern "C" {
int omp_get_max_threads(void);        // NOLINT(readability-identifier-naming)
void omp_set_num_threads(int count);  // NOLINT(readability-identifier-naming)
}

namespace optshard {
namespace {

using dnnl::memory;

// While it lives, what oneDNN does in its thread stays in it. OpenMP keeps the number for each
// thread, and LibTorch may share the OpenMP of the process.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
};

const dnnl::engine& Cpu() {
  static const auto* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

memory::desc Matrix(int64_t rows, int64_t columns, bool transposed, memory::data_type type) {
  return {{rows, columns}, type, transposed ? memory::format_tag::ba : memory::format_tag::ab};
}

dnnl::matmul::primitive_desc Describe(const MatrixProductSpec& spec, memory::data_type given,
                                      memory::data_type result) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (spec.scale != 1) attributes.set_output_scales(0, {spec.scale});
  if (spec.adds) {
    dnnl::post_ops after;
    after.append_sum(spec.keep);
    attributes.set_post_ops(after);
  }
  return {dnnl::matmul::desc(Matrix(spec.rows, spec.inner, spec.a_transposed, given),
                             Matrix(spec.inner, spec.columns, spec.b_transposed, given),
                             Matrix(spec.rows, spec.columns, /*transposed=*/false, result)),
          attributes, Cpu()};
}

// Of matrices in the types that oneDNN takes them in.
class DirectProduct : public MatrixProduct {
 public:
  explicit DirectProduct(const dnnl::matmul::primitive_desc& description)
      : description_(description), matmul_(description) {}

  int64_t scratch_bytes() const override {
    return static_cast<int64_t>(description_.scratchpad_desc().get_size());
  }

  void Run(const void* a, const void* b, void* c, void* scratch) const override {
    const OneThread one_thread;
    dnnl::stream stream(Cpu());
    // oneDNN has one memory type for what it reads and what it writes.
    const memory a_memory(description_.src_desc(), Cpu(), const_cast<void*>(a));
    const memory b_memory(description_.weights_desc(), Cpu(), const_cast<void*>(b));
    const memory c_memory(description_.dst_desc(), Cpu(), c);
    const memory scratch_memory(description_.scratchpad_desc(), Cpu(), scratch);
    matmul_.execute(stream, {{DNNL_ARG_SRC, a_memory},
                             {DNNL_ARG_WEIGHTS, b_memory},
                             {DNNL_ARG_DST, c_memory},
                             {DNNL_ARG_SCRATCHPAD, scratch_memory}});
    stream.wait();
  }

 private:
  const dnnl::matmul::primitive_desc description_;
  const dnnl::matmul matmul_;
};

// For CPUs on which oneDNN has no bfloat16 (those without AVX-512): of the matrices in float32.
class WidenedProduct : public MatrixProduct {
 public:
  explicit WidenedProduct(const MatrixProductSpec& spec)
      : spec_(spec), product_(Describe(spec, memory::data_type::f32, memory::data_type::f32)) {}

  int64_t scratch_bytes() const override {
    return Aligned(a_elements()) + Aligned(b_elements()) + Aligned(c_elements()) +
           product_.scratch_bytes();
  }

  void Run(const void* a, const void* b, void* c, void* scratch) const override {
    auto* const wide_a = static_cast<float*>(scratch);
    float* const wide_b = After(wide_a, a_elements());
    float* const wide_c = After(wide_b, b_elements());
    Widen(DType::kBFloat16, a, a_elements(), wide_a);
    Widen(DType::kBFloat16, b, b_elements(), wide_b);
    float* const rest = After(wide_c, c_elements());
    if (spec_.result == DType::kFloat32) {
      product_.Run(wide_a, wide_b, c, rest);
      return;
    }
    if (spec_.adds) Widen(DType::kBFloat16, c, c_elements(), wide_c);
    product_.Run(wide_a, wide_b, wide_c, rest);
    Narrow(DType::kBFloat16, wide_c, c_elements(), c);
  }

 private:
  static int64_t Aligned(int64_t elements) { return (elements * 4 + 63) / 64 * 64; }
  static float* After(float* array, int64_t elements) { return array + Aligned(elements) / 4; }

  int64_t a_elements() const { return spec_.rows * spec_.inner; }
  int64_t b_elements() const { return spec_.inner * spec_.columns; }
  int64_t c_elements() const { return spec_.rows * spec_.columns; }

  const MatrixProductSpec spec_;
  const DirectProduct product_;
};

std::shared_ptr<const MatrixProduct> Make(const MatrixProductSpec& spec) {
  const OneThread one_thread;  // The number of threads chooses how a product is cut.
  const auto result =
      spec.result == DType::kFloat32 ? memory::data_type::f32 : memory::data_type::bf16;
  try {
    return std::make_shared<DirectProduct>(Describe(spec, memory::data_type::bf16, result));
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented) throw;
    return std::make_shared<WidenedProduct>(spec);
  }
}

}  // namespace
}  // namespace optshard

extern "C" __attribute__((visibility("default"))) void optshard_make_matrix_product(
    const optshard::MatrixProductSpec& spec,
    std::shared_ptr<const optshard::MatrixProduct>* product, absl::Status* status) {
  try {
    *product = optshard::Make(spec);
    *status = absl::OkStatus();
  } catch (const std::exception& error) {
    *status = absl::InternalError(absl::StrCat("oneDNN: ", error.what()));
  }
}

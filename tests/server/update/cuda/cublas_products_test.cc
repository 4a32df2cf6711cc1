// Products of matrices on a GPU, of whole numbers: whatever the order of a sum, it is exact.
#include "server/update/cuda/cublas_products.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/cuda/cuda_memory.h"
#include "common/half.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

// The matrices of some products, each a multiple of 64 bytes behind the one before.
struct Stack {
  Stack(int64_t rows, int64_t columns, int64_t count, int64_t gap = 0)
      : elements(rows * columns), stride((elements + gap + 31) / 32 * 32), values(count * stride) {}

  int64_t elements;
  int64_t stride;
  std::vector<uint16_t> values;
};

Stack WholeNumbers(int64_t rows, int64_t columns, int64_t count, std::mt19937& random,
                   int64_t gap = 0) {
  Stack stack(rows, columns, count, gap);
  for (uint16_t& value : stack.values) {
    value = ToBFloat16(static_cast<float>(static_cast<int>(random() % 5) - 2));
  }
  return stack;
}

float At(const Stack& stack, int64_t product, int64_t index) {
  return FromBFloat16(stack.values[product * stack.stride + index]);
}

class CublasProductsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    auto products = CublasProducts::Create(0);
    ASSERT_TRUE(products.ok()) << products.status();
    products_ = *std::move(products);
  }

  DeviceMatrices OnDevice(const Stack& stack) {
    auto memory = CudaMemory::OnDevice(stack.values.size() * sizeof(uint16_t));
    EXPECT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(
        cudaMemcpy(memory->data(), stack.values.data(), memory->bytes(), cudaMemcpyHostToDevice),
        cudaSuccess);
    kept_.push_back(*std::move(memory));
    return {kept_.back().data(), stack.stride};
  }

  std::unique_ptr<CublasProducts> products_;
  std::vector<CudaMemory> kept_;
};

TEST_F(CublasProductsTest, AnyShapeAndLayout_EveryProductIsExact) {
  std::mt19937 random(7);
  for (const auto& [rows, columns, inner] : std::vector<std::tuple<int, int, int>>{
           {64, 128, 64},
           {1, 1, 300},
           {33, 33, 47},
           {512, 17, 96},
           {5, 256, 5},
           {130, 70, 1000},
           // Much longer than wide, as Gram matrices are made of.
           {16, 16, 520},
           {64, 64, 6408},
           {8, 8, 50264}}) {
    for (int form = 0; form < 16; ++form) {
      DeviceProduct product;
      product.shape.rows = rows;
      product.shape.columns = columns;
      product.shape.inner = inner;
      product.shape.a_transposed = form % 2 == 1;
      product.shape.b_transposed = form / 2 % 2 == 1;
      product.shape.count = form / 4 % 2 == 1 ? 3 : 1;
      product.keep = form / 8 == 1 ? 2.0F : 0.0F;
      product.scale = 0.5F;
      const ProductShape& shape = product.shape;
      const Stack a = WholeNumbers(shape.rows, shape.inner, shape.count, random);
      const Stack b = WholeNumbers(shape.inner, shape.columns, shape.count, random);
      const Stack c = WholeNumbers(shape.rows, shape.columns, shape.count, random);
      const Stack before = WholeNumbers(shape.rows, shape.columns, shape.count, random, 100);
      Stack d = before;
      product.a = OnDevice(a);
      product.b = OnDevice(b);
      product.c = OnDevice(c);
      product.d = OnDevice(d);
      ASSERT_TRUE(products_->Prepare(product).ok());
      const absl::Status enqueued = products_->Enqueue(product, nullptr);
      ASSERT_TRUE(enqueued.ok()) << enqueued;
      ASSERT_EQ(cudaMemcpy(d.values.data(), product.d.data, d.values.size() * sizeof(uint16_t),
                           cudaMemcpyDeviceToHost),
                cudaSuccess);
      for (int64_t p = 0; p < shape.count; ++p) {
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t k = 0; k < columns; ++k) {
            float sum = 0;
            for (int64_t j = 0; j < inner; ++j) {
              sum += At(a, p, shape.a_transposed ? j * rows + i : i * inner + j) *
                     At(b, p, shape.b_transposed ? k * inner + j : j * columns + k);
            }
            const int64_t index = i * columns + k;
            const float exact = product.scale * sum + product.keep * At(c, p, index);
            ASSERT_EQ(At(d, p, index), FromBFloat16(ToBFloat16(exact)))
                << absl::StrFormat("%d x %d of %d, form %d, product %d, row %d, column %d", rows,
                                   columns, inner, form, p, i, k);
          }
        }
        for (int64_t i = d.elements; i < d.stride; ++i) {
          ASSERT_EQ(At(d, p, i), At(before, p, i)) << "between the matrices";
        }
      }
      kept_.clear();
    }
  }
}

// Of numbers whose sums are rounded, in the forms in which a direction is made orthogonal.
TEST_F(CublasProductsTest, ManyAtOnce_HaveTheBitsOfEachAlone) {
  constexpr int64_t kCount = 5;
  std::mt19937 random(11);
  const auto numbers = [&random](int64_t rows, int64_t columns, int64_t gap) {
    Stack stack(rows, columns, kCount, gap);
    for (uint16_t& value : stack.values) {
      value = ToBFloat16(static_cast<float>(random() % 65536) / 65536.0F - 0.5F);
    }
    return stack;
  };
  for (const auto& [shorter, longer] : std::vector<std::pair<int64_t, int64_t>>{
           {48, 2048}, {512, 2048}, {33, 47}, {7, 1001}, {1, 70}, {64, 64}}) {
    for (int form = 0; form < 5; ++form) {
      const bool is_square = form < 3;
      const bool is_tall = form == 1 || form == 4;
      DeviceProduct product;
      ProductShape& shape = product.shape;
      shape.rows = is_square || !is_tall ? shorter : longer;
      shape.columns = is_square || is_tall ? shorter : longer;
      shape.inner = form < 2 ? longer : shorter;
      shape.a_transposed = form == 1;
      shape.b_transposed = form == 0 || form == 2 || form == 4;
      product.keep = form < 2 ? 0.0F : 3.4445F;
      product.a = OnDevice(numbers(shape.rows, shape.inner, 0));
      product.b = OnDevice(numbers(shape.inner, shape.columns, 0));
      product.c = OnDevice(numbers(shape.rows, shape.columns, 0));
      const Stack before = numbers(shape.rows, shape.columns, 200);
      std::vector<Stack> results(2, before);
      for (const bool at_once : {false, true}) {
        product.d = OnDevice(before);
        shape.count = at_once ? kCount : 1;
        for (int64_t i = 0; i < kCount; i += shape.count) {
          DeviceProduct these = product;
          for (DeviceMatrices* each : {&these.a, &these.b, &these.c, &these.d}) {
            each->data = static_cast<uint16_t*>(each->data) + i * each->stride;
          }
          const absl::Status enqueued = products_->Enqueue(these, nullptr);
          ASSERT_TRUE(enqueued.ok()) << enqueued;
        }
        std::vector<uint16_t>& values = results[at_once ? 1 : 0].values;
        ASSERT_EQ(cudaMemcpy(values.data(), product.d.data, values.size() * sizeof(uint16_t),
                             cudaMemcpyDeviceToHost),
                  cudaSuccess);
      }
      EXPECT_TRUE(results[0].values == results[1].values)
          << shorter << " x " << longer << ", form " << form;
      EXPECT_FALSE(results[0].values == before.values);
      kept_.clear();
    }
  }
}

}  // namespace
}  // namespace optshard

// Products of matrices and the iteration made of them, against double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/half.h"
#include "common/isolated_object.h"
#include "server/update/matrix/newton_schulz.h"
#include "server/update/matrix/onednn_loader.h"
#include "tests/server/update/rule_cases.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

using Halves = std::vector<uint16_t, CacheLineAllocator<uint16_t>>;
using Bytes = std::vector<char, CacheLineAllocator<char>>;

// Numbers in [-1, 1) that bfloat16 holds.
Halves SomeHalves(int64_t count, uint32_t seed) {
  Halves values(count);
  for (uint16_t& value : values) {
    seed = seed * 1664525 + 1013904223;
    value = ToBFloat16(static_cast<float>(seed >> 8) / (1 << 23) - 1);
  }
  return values;
}

double At(const Halves& matrix, int64_t row, int64_t column, int64_t rows, int64_t columns,
          bool transposed) {
  return FromBFloat16(transposed ? matrix[column * rows + row] : matrix[row * columns + column]);
}

struct Given {
  explicit Given(const MatrixProductSpec& spec)
      : a(SomeHalves(spec.rows * spec.inner, 1)),
        b(SomeHalves(spec.inner * spec.columns, 2)),
        c(SomeHalves(spec.rows * spec.columns, 3)) {}
  Halves a, b, c;
};

double Expected(const MatrixProductSpec& spec, const Given& given, int64_t row, int64_t column) {
  double sum = 0;
  for (int64_t k = 0; k < spec.inner; ++k) {
    sum += At(given.a, row, k, spec.rows, spec.inner, spec.a_transposed) *
           At(given.b, k, column, spec.inner, spec.columns, spec.b_transposed);
  }
  sum *= spec.scale;
  if (spec.adds) sum += spec.keep * FromBFloat16(given.c[row * spec.columns + column]);
  return sum;
}

void RunHalves(const MatrixProduct& product, const Given& given, Halves* c) {
  Bytes scratch(product.scratch_bytes());
  product.Run(given.a.data(), given.b.data(), c->data(), scratch.data());
}

MatrixProductSpec SpecOf(int64_t rows, int64_t columns, int64_t inner) {
  MatrixProductSpec spec;
  spec.rows = rows;
  spec.columns = columns;
  spec.inner = inner;
  return spec;
}

TEST(MatrixProduct, OfAnyShape_IsTheSumRoundedOnce) {
  for (const MatrixProductSpec& shape : {SpecOf(1, 1, 1), SpecOf(3, 5, 7), SpecOf(64, 33, 130)}) {
    for (int variant = 0; variant < 8; ++variant) {
      MatrixProductSpec spec = shape;
      spec.a_transposed = (variant & 1) != 0;
      spec.b_transposed = (variant & 2) != 0;
      if ((variant & 4) != 0) {
        spec.scale = -2;
        spec.adds = true;
        spec.keep = 3;
      }
      const auto product = FindMatrixProduct(spec);
      ASSERT_TRUE(product.ok()) << product.status();
      const Given given(spec);
      Halves c = given.c;
      RunHalves(**product, given, &c);
      for (int64_t i = 0; i < static_cast<int64_t>(c.size()); ++i) {
        const double expected = Expected(spec, given, i / spec.columns, i % spec.columns);
        // Half of the last place, and what float32 lost.
        ASSERT_NEAR(FromBFloat16(c[i]), expected, std::abs(expected) / 256 + 1e-4) << variant;
      }
    }
  }
}

TEST(MatrixProduct, ToFloat32_IsNotRounded) {
  MatrixProductSpec spec = SpecOf(16, 16, 100);
  spec.result = DType::kFloat32;
  const auto product = FindMatrixProduct(spec);
  ASSERT_TRUE(product.ok()) << product.status();
  const Given given(spec);
  AlignedFloats c(256);
  Bytes scratch((*product)->scratch_bytes());
  (*product)->Run(given.a.data(), given.b.data(), c.data(), scratch.data());
  for (int64_t i = 0; i < 256; ++i) {
    EXPECT_NEAR(c[i], Expected(spec, given, i / 16, i % 16), 1e-5);
  }
}

TEST(MatrixProduct, MadeTwice_IsTheSame) {
  const auto first = FindMatrixProduct(SpecOf(8, 16, 24));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->get(), FindMatrixProduct(SpecOf(8, 16, 24))->get());
  EXPECT_NE(first->get(), FindMatrixProduct(SpecOf(16, 8, 24))->get());
}

TEST(MatrixProduct, OnSeveralThreadsAtOnce_SameBits) {
  const MatrixProductSpec spec = SpecOf(96, 80, 200);
  const auto product = FindMatrixProduct(spec);
  ASSERT_TRUE(product.ok()) << product.status();
  const Given given(spec);
  std::vector<Halves> results(4, given.c);
  std::vector<std::thread> threads;
  for (Halves& result : results) {
    threads.emplace_back([&, out = &result] { RunHalves(**product, given, out); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Halves& result : results) EXPECT_EQ(result, results[0]);
}

// As where the object's library is not installed.
TEST(LoadIsolated, ObjectThatCannotBeLoaded_SaysWhatIsMissing) {
  const absl::Status status =
      LoadIsolated({"nothing", "no object", "entry", "the plugin", "Lib", "liblib2", "lib_make"})
          .status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the plugin cannot be loaded: is Debian's liblib2 installed?: "));
}

// The iteration in double.
std::vector<double> Iterated(std::vector<double> x, int64_t rows, int64_t columns,
                             const NewtonSchulz& by) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  for (double& value : x) value /= std::max(std::sqrt(squares), by.eps);
  for (int step = 0; step < by.steps; ++step) {
    // (b g + c g g) x with g = x xT, for any shape.
    const auto gram_times = [&](const std::vector<double>& m) {
      std::vector<double> g(rows * rows), out(rows * columns);
      for (int64_t i = 0; i < rows * rows; ++i) {
        for (int64_t k = 0; k < columns; ++k) {
          g[i] += x[i / rows * columns + k] * x[i % rows * columns + k];
        }
      }
      for (int64_t i = 0; i < rows * columns; ++i) {
        for (int64_t k = 0; k < rows; ++k) {
          out[i] += g[i / columns * rows + k] * m[k * columns + i % columns];
        }
      }
      return out;
    };
    const std::vector<double> once = gram_times(x);
    const std::vector<double> twice = gram_times(once);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = by.a * x[i] + by.b * once[i] + by.c * twice[i];
    }
  }
  return x;
}

template <typename T>
std::vector<double> RunOn(const std::vector<double>& values, const NewtonSchulz& by) {
  std::vector<T, CacheLineAllocator<T>> matrix(values.begin(), values.end());
  Bytes workspace(NewtonSchulz::WorkspaceBytes(by.rows, by.columns));
  const ConstBuffer result = by.Run(matrix.data(), workspace.data());
  std::vector<double> out(values.size());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = result.dtype() == DType::kFloat64 ? result.As<double>()[i]
                                               : FromBFloat16(result.As<uint16_t>()[i]);
  }
  return out;
}

TEST(NewtonSchulz, WideTallAndSquare_AreTheIterationsToBFloat16) {
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {24, 40}, {40, 24}, {32, 32}, {1, 9}, {9, 1}, {1, 1}}) {
    for (const int steps : {0, 1, 4, 5}) {
      const NewtonSchulz by{rows, columns, 3.4445f, -4.7750f, 2.0315f, steps, 1e-7};
      std::vector<double> values;
      for (const uint16_t half : SomeHalves(rows * columns, 4)) {
        values.push_back(FromBFloat16(half));
      }
      const std::vector<double> expected = Iterated(values, rows, columns, by);
      const std::vector<double> got = RunOn<float>(values, by);
      double squares = 0, error_squares = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        squares += expected[i] * expected[i];
        error_squares += (got[i] - expected[i]) * (got[i] - expected[i]);
      }
      EXPECT_LE(std::sqrt(error_squares / squares), 0.03)
          << rows << " x " << columns << ", " << steps << " steps";
      // What is iterated is bfloat16 for both.
      EXPECT_EQ(RunOn<double>(values, by), got);
    }
  }
}

// Large ones are computed in blocks. A matrix of one singular value is only scaled.
TEST(NewtonSchulz, LargeMatricesOfRankOne_AreScaled) {
  for (const auto& [rows, columns] :
       std::vector<std::pair<int64_t, int64_t>>{{530, 531}, {1100, 1030}, {1030, 1100}}) {
    const NewtonSchulz by{rows, columns, 3.4445f, -4.7750f, 2.0315f, 1, 1e-7};
    const Halves u = SomeHalves(rows, 5);
    const Halves v = SomeHalves(columns, 6);
    std::vector<double> values(rows * columns);
    double squares = 0;
    for (int64_t i = 0; i < rows * columns; ++i) {
      values[i] = FromBFloat16(u[i / columns]) * FromBFloat16(v[i % columns]);
      squares += values[i] * values[i];
    }
    const double factor = (3.4445 - 4.7750 + 2.0315) / std::sqrt(squares);
    const std::vector<double> got = RunOn<float>(values, by);
    double error = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error = std::max(error, std::abs(got[i] / factor - values[i]));
    }
    EXPECT_LE(error, 0.05) << rows << " x " << columns;
  }
}

// The result takes the matrix's place, also where the last iteration has left it there.
TEST(NewtonSchulz, LargeMatrixOfFloat64_HasTheValuesOfFloat32) {
  for (const int steps : {1, 2}) {
    const NewtonSchulz by{70, 60, 3.4445f, -4.7750f, 2.0315f, steps, 1e-7};
    std::vector<double> values;
    for (const uint16_t half : SomeHalves(by.rows * by.columns, 7)) {
      values.push_back(FromBFloat16(half));
    }
    EXPECT_EQ(RunOn<double>(values, by), RunOn<float>(values, by)) << steps;
  }
}

TEST(NewtonSchulz, Zeros_StayZeros) {
  const NewtonSchulz by{4, 6, 3, -4, 2, 5, 1e-7};
  EXPECT_EQ(RunOn<float>(std::vector<double>(24), by), std::vector<double>(24));
}

}  // namespace
}  // namespace optshard::testing

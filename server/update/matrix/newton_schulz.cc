#include "server/update/matrix/newton_schulz.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "common/dtype_conversion.h"
#include "common/fatal.h"
#include "common/simd/norms.h"
#include "server/update/matrix/onednn_loader.h"
#include "server/update/norm_ratio.h"

namespace optshard {
namespace {

constexpr int64_t kHalfBytes = 2;  // of a bfloat16

int64_t Aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

MatrixProductSpec TimesTransposed(int64_t rows, int64_t columns, int64_t inner) {
  MatrixProductSpec spec;
  spec.rows = rows;
  spec.columns = columns;
  spec.inner = inner;
  spec.b_transposed = true;
  return spec;
}

std::shared_ptr<const MatrixProduct> Find(const MatrixProductSpec& spec) {
  absl::StatusOr<std::shared_ptr<const MatrixProduct>> product = FindMatrixProduct(spec);
  if (!product.ok()) {
    Fatal("NewtonSchulz: a product of %d x %d and %d x %d: %s", spec.rows, spec.inner, spec.inner,
          spec.columns, std::string(product.status().message()));
  }
  return *std::move(product);
}

// `from` is rows x columns, `to` columns x rows. `from_stride`, `to_stride`: elements between the
// beginnings of rows.
void Transpose(const uint16_t* from, int64_t rows, int64_t columns, int64_t from_stride,
               uint16_t* to, int64_t to_stride) {
  constexpr int64_t kTile = 32;  // of both fits into the first-level cache
  for (int64_t row = 0; row < rows; row += kTile) {
    const int64_t row_end = std::min(rows, row + kTile);
    for (int64_t column = 0; column < columns; column += kTile) {
      const int64_t column_end = std::min(columns, column + kTile);
      for (int64_t j = column; j < column_end; ++j) {
        for (int64_t i = row; i < row_end; ++i) {
          to[j * to_stride + i] = from[i * from_stride + j];
        }
      }
    }
  }
}

// Memory from the front of a workspace.
class Carved {
 public:
  explicit Carved(void* memory) : next_(static_cast<char*>(memory)) {}
  uint16_t* Take(int64_t bytes) {
    char* const taken = next_;
    next_ += Aligned(bytes);
    return reinterpret_cast<uint16_t*>(taken);
  }

 private:
  char* next_;
};

// The matrix times `factor`, rounded to bfloat16.
template <typename T>
void Scale(const T* matrix, double factor, int64_t elements, void* to) {
  constexpr int64_t kBlock = 1024;
  float block[kBlock];
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t count = std::min(kBlock, elements - begin);
    for (int64_t i = 0; i < count; ++i) {
      block[i] = static_cast<float>(static_cast<double>(matrix[begin + i]) * factor);
    }
    Narrow(DType::kBFloat16, block, count, static_cast<char*>(to) + begin * kHalfBytes);
  }
}

// In place of what `to` holds. `from` lies elsewhere.
void WidenTo64(const void* from, int64_t elements, double* to) {
  constexpr int64_t kBlock = 1024;
  float block[kBlock];
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t count = std::min(kBlock, elements - begin);
    Widen(DType::kBFloat16, static_cast<const char*>(from) + begin * kHalfBytes, count, block);
    std::copy(block, block + count, to + begin);
  }
}

// Gives each product the scratch memory that it needs.
class Scratch {
 public:
  Scratch(void* memory, int64_t bytes) : memory_(memory), bytes_(bytes) {}

  void Run(const MatrixProductSpec& spec, const void* a, const void* b, void* c) {
    const std::shared_ptr<const MatrixProduct> found = Find(spec);
    const MatrixProduct& product = *found;
    if (product.scratch_bytes() > bytes_) {
      // With factors of 1, of which oneDNN may make another product.
      own_.reset(std::aligned_alloc(64, Aligned(product.scratch_bytes())));
      if (own_ == nullptr) {
        Fatal("There is no memory for %d bytes that a product of matrices needs",
              product.scratch_bytes());
      }
      memory_ = own_.get();
      bytes_ = product.scratch_bytes();
    }
    product.Run(a, b, c, memory_);
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  void* memory_;
  int64_t bytes_;
  std::unique_ptr<void, Free> own_;
};

// a aT is symmetric: only blocks of rows up to the diagonal are computed, each with the columns up
// to its own end.
class SymmetricProduct {
 public:
  SymmetricProduct(int64_t rows, int64_t inner) : rows_(rows), inner_(inner) {}

  int64_t blocks() const { return std::max<int64_t>(1, std::min(kMostBlocks, rows_ / kLeastRows)); }
  int64_t BlockEnd(int64_t block) const { return rows_ * (block + 1) / blocks(); }
  MatrixProductSpec BlockSpec(int64_t block) const {
    const int64_t begin = block == 0 ? 0 : BlockEnd(block - 1);
    return TimesTransposed(BlockEnd(block) - begin, BlockEnd(block), inner_);
  }

  // c = a aT. `spare` has room for c.
  void Run(const uint16_t* a, uint16_t* c, uint16_t* spare, Scratch* scratch) const {
    RunBlocks(
        a, c, spare, [](MatrixProductSpec*) {}, scratch);
  }
  // c = scale * a aT + keep * c, for a symmetric c.
  void RunAdding(const uint16_t* a, float scale, float keep, uint16_t* c, uint16_t* spare,
                 Scratch* scratch) const {
    const auto add = [scale, keep](MatrixProductSpec* spec) {
      spec->scale = scale;
      spec->adds = true;
      spec->keep = keep;
    };
    RunBlocks(a, c, spare, add, scratch);
  }

 private:
  static constexpr int64_t kMostBlocks = 4;
  static constexpr int64_t kLeastRows = 256;  // products of fewer are slower

  template <class Change>
  void RunBlocks(const uint16_t* a, uint16_t* c, uint16_t* spare, const Change& change,
                 Scratch* scratch) const {
    int64_t begin = 0;
    for (int64_t block = 0; block < blocks(); ++block) {
      MatrixProductSpec spec = BlockSpec(block);
      change(&spec);
      const int64_t end = begin + spec.rows;
      uint16_t* const rows_of_c = c + begin * rows_;
      // Matrices have no gaps.
      uint16_t* const to = end == rows_ ? rows_of_c : spare;
      if (spec.adds && to == spare) CopyRows(rows_of_c, rows_, to, end, spec);
      scratch->Run(spec, a + begin * inner_, a, to);
      if (to == spare) CopyRows(to, end, rows_of_c, rows_, spec);
      Transpose(rows_of_c, spec.rows, begin, rows_, c + begin, rows_);
      begin = end;
    }
  }

  static void CopyRows(const uint16_t* from, int64_t from_stride, uint16_t* to, int64_t to_stride,
                       const MatrixProductSpec& shape) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      std::memcpy(to + row * to_stride, from + row * from_stride, shape.columns * kHalfBytes);
    }
  }

  const int64_t rows_;
  const int64_t inner_;
};

// u x, added to factor * x.
MatrixProductSpec StepSpec(int64_t shorter, int64_t longer, float factor) {
  MatrixProductSpec spec;
  spec.rows = shorter;
  spec.columns = longer;
  spec.inner = shorter;
  spec.adds = true;
  spec.keep = factor;
  return spec;
}

int64_t ScratchBytes(int64_t shorter, int64_t longer) {
  int64_t most = 0;
  const auto count = [&most](const MatrixProductSpec& spec) {
    const auto product = FindMatrixProduct(spec);
    if (product.ok()) most = std::max(most, (*product)->scratch_bytes());
  };
  const SymmetricProduct gram(shorter, longer);
  const SymmetricProduct square(shorter, shorter);
  for (int64_t block = 0; block < gram.blocks(); ++block) {
    count(gram.BlockSpec(block));
    MatrixProductSpec adding = square.BlockSpec(block);
    // The factors do not matter, as long as they are not 1.
    adding.scale = adding.keep = 2;
    adding.adds = true;
    count(adding);
  }
  count(StepSpec(shorter, longer, 2));
  return most;
}

}  // namespace

int64_t NewtonSchulz::WorkspaceBytes(int64_t rows, int64_t columns) {
  if (rows == 0 || columns == 0 || !LoadOneDnn().ok()) return 0;
  const int64_t shorter = std::min(rows, columns);
  return Aligned(rows * columns * kHalfBytes) + 2 * Aligned(shorter * shorter * kHalfBytes) +
         ScratchBytes(shorter, std::max(rows, columns));
}

ConstBuffer NewtonSchulz::Run(Buffer matrix, void* workspace) const {
  const int64_t elements = rows * columns;
  const int64_t shorter = std::min(rows, columns);
  const int64_t longer = std::max(rows, columns);
  const int64_t x_bytes = elements * kHalfBytes;
  const int64_t gram_bytes = shorter * shorter * kHalfBytes;
  Carved memory(workspace);
  uint16_t* x = memory.Take(x_bytes);
  uint16_t* const gram = memory.Take(gram_bytes);
  uint16_t* const update = memory.Take(gram_bytes);
  Scratch scratch(memory.Take(0), ScratchBytes(shorter, longer));

  const double factor = InverseNorm(SumOfSquares(matrix, elements), eps);
  const bool is_double = matrix.dtype() == DType::kFloat64;
  if (is_double) {
    Scale(matrix.As<double>(), factor, elements, x);
  } else {
    Scale(matrix.As<float>(), factor, elements, x);
  }
  auto* next = matrix.As<uint16_t>();
  // What is iterated has its longer side in the rows.
  const bool is_transposed = rows > columns;
  const auto transpose = [&](int64_t from_rows, int64_t from_columns) {
    if (!is_transposed) return;
    Transpose(x, from_rows, from_columns, from_columns, next, from_rows);
    std::swap(x, next);
  };
  transpose(rows, columns);
  const SymmetricProduct make_gram(shorter, longer);
  const SymmetricProduct make_square(shorter, shorter);
  for (int i = 0; i < steps; ++i) {
    make_gram.Run(x, gram, next, &scratch);
    std::memcpy(update, gram, gram_bytes);
    make_square.RunAdding(gram, c, b, update, next, &scratch);
    std::memcpy(next, x, x_bytes);
    scratch.Run(StepSpec(shorter, longer, a), update, x, next);
    std::swap(x, next);
  }
  transpose(columns, rows);
  if (!is_double) return ConstBuffer(x, DType::kBFloat16);
  if (x == matrix.data()) {
    std::memcpy(next, x, x_bytes);
    x = next;
  }
  WidenTo64(x, elements, matrix.As<double>());
  return matrix;
}

}  // namespace optshard

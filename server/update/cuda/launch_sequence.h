// What a rule that needs whole parameters does on a device: kernels and products of matrices in
// order, and what they read.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_LAUNCH_SEQUENCE_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_LAUNCH_SEQUENCE_H_

#include <cstddef>
#include <deque>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "absl/types/variant.h"
#include "server/update/cuda/device_product.h"
#include "server/update/cuda/halves_table.h"
#include "server/update/cuda/launch_table.h"
#include "server/update/cuda/matrices_table.h"
#include "server/update/cuda/squares_table.h"
#include "server/update/cuda/step_size_body.h"
#include "server/update/executor.h"
#include "server/update/update_rule.h"

namespace optshard {

// Who runs kernels: a device, or the host in tests. Each comes behind those before it.
class SequenceRunner {
 public:
  virtual ~SequenceRunner() = default;

  // `at`: where the table's copy lies.
  virtual absl::Status RunFormula(const char* formula, const LaunchTable& table,
                                  const void* at) = 0;
  // Of spans too, or of blocks alone.
  virtual absl::Status RunSquares(const SquaresArguments& arguments, bool of_spans) = 0;
  virtual absl::Status RunStepSizes(const StepSizeArguments& arguments) = 0;
  virtual absl::Status RunMatrices(MatricesPhase phase, bool is_double,
                                   const MatricesArguments& arguments) = 0;
  virtual absl::Status RunHalves(HalvesPhase phase, bool is_double,
                                 const HalvesArguments& arguments) = 0;
  virtual absl::Status RunProduct(const DeviceProduct& product) = 0;
};

// Thread-compatible.
class LaunchSequence {
 public:
  LaunchSequence() = default;
  LaunchSequence(LaunchSequence&&) = default;
  LaunchSequence& operator=(LaunchSequence&&) = default;

  // That live as long as this.
  Coefficients& NewCoefficients(const Coefficients& like) {
    return coefficients_.emplace_back(like);
  }

  // The kernels of a formula over all tasks. Errors of LaunchTable::For.
  absl::Status AddFormula(const char* formula, absl::Span<const UpdateTask> tasks);
  // Likewise, and before it the sizes of steps, which become coefficient `index` of those tasks: by
  // their coefficients, each task having its own. `sums`: two for each StepSize::task.
  absl::Status AddSteps(const char* formula, absl::Span<const UpdateTask> tasks, int index,
                        const std::map<const Coefficients*, StepSize>& sizes,
                        const SumOfSquaresOnDevice* sums);
  // Sums go to `sums`, on the device: first those of the blocks.
  void AddSquares(const SquaresTable& table, void* sums, bool of_spans);
  void AddMatrices(MatricesPhase phase, const MatricesTable& table);
  void AddHalves(HalvesPhase phase, const HalvesTable& table);
  void AddProduct(const DeviceProduct& product);

  // What is copied to the device, 16-byte aligned there. `at`: where that will be.
  size_t bytes() const { return bytes_; }
  void CopyTo(void* to, void* at) const;

  // The first error.
  absl::Status ForEachFormula(
      absl::FunctionRef<absl::Status(const char* formula, const LaunchTable& table)> use) const;
  absl::Status ForEachProduct(
      absl::FunctionRef<absl::Status(const DeviceProduct& product)> use) const;

  // Of a copy that lies at `at`. The runner's first error.
  absl::Status Run(const void* at, SequenceRunner& runner) const;

 private:
  struct Formula {
    const char* formula = nullptr;
    LaunchTable table;
  };
  struct Squares {
    SquaresTable table;
    void* sums = nullptr;
    bool of_spans = false;
  };
  // Of the formula that comes next.
  struct Steps {
    std::vector<StepSize> sizes;  // by set of its coefficients, without `to`
    std::vector<size_t> to;       // from the beginning of its copy
    bool is_double = false;
    const SumOfSquaresOnDevice* sums = nullptr;
  };
  struct Matrices {
    MatricesPhase phase = MatricesPhase::kMeans;
    MatricesTable table;
  };
  struct Halves {
    HalvesPhase phase = HalvesPhase::kScale;
    HalvesTable table;
  };
  struct Operation {
    absl::variant<Formula, Squares, Steps, Matrices, Halves, DeviceProduct> what;
    size_t at = 0;  // where what it reads lies in the copy
  };

  template <typename What>
  void Add(What what, size_t bytes);
  void AddTable(const char* formula, LaunchTable table);

  std::deque<Coefficients> coefficients_;  // that tables point to
  std::vector<Operation> operations_;
  size_t bytes_ = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_LAUNCH_SEQUENCE_H_

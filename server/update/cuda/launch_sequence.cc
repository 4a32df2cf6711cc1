#include "server/update/cuda/launch_sequence.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "common/dtype.h"

namespace optshard {
namespace {

constexpr size_t kAlignment = 16;

void* At(void* memory, size_t offset) { return static_cast<char*>(memory) + offset; }
const void* At(const void* memory, size_t offset) {
  return static_cast<const char*>(memory) + offset;
}

}  // namespace

template <typename What>
void LaunchSequence::Add(What what, size_t bytes) {
  operations_.push_back({std::move(what), bytes_});
  bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void LaunchSequence::AddTable(const char* formula, LaunchTable table) {
  const size_t bytes = table.bytes();
  Add(Formula{formula, std::move(table)}, bytes);
}

absl::Status LaunchSequence::AddFormula(const char* formula, absl::Span<const UpdateTask> tasks) {
  absl::StatusOr<std::vector<LaunchTable>> tables = LaunchTable::For(tasks);
  if (!tables.ok()) return tables.status();
  for (LaunchTable& table : *tables) AddTable(formula, std::move(table));
  return absl::OkStatus();
}

absl::Status LaunchSequence::AddSteps(const char* formula, absl::Span<const UpdateTask> tasks,
                                      int index,
                                      const std::map<const Coefficients*, StepSize>& sizes,
                                      const SumOfSquaresOnDevice* sums) {
  absl::StatusOr<std::vector<LaunchTable>> tables = LaunchTable::For(tasks);
  if (!tables.ok()) return tables.status();
  for (LaunchTable& table : *tables) {
    Steps steps;
    for (const Coefficients* set : table.coefficients()) {
      steps.to.push_back(table.CoefficientAt(steps.sizes.size(), index));
      steps.sizes.push_back(sizes.at(set));
    }
    steps.is_double = table.arithmetic() == DType::kFloat64;
    steps.sums = sums;
    const size_t bytes = steps.sizes.size() * sizeof(StepSize);
    Add(std::move(steps), bytes);
    AddTable(formula, std::move(table));
  }
  return absl::OkStatus();
}

void LaunchSequence::AddSquares(const SquaresTable& table, void* sums, bool of_spans) {
  if (table.bytes() == 0) return;
  Add(Squares{table, sums, of_spans}, table.bytes());
}

void LaunchSequence::AddMatrices(MatricesPhase phase, const MatricesTable& table) {
  if (table.bytes() == 0) return;
  Add(Matrices{phase, table}, table.bytes());
}

void LaunchSequence::AddHalves(HalvesPhase phase, const HalvesTable& table) {
  if (table.bytes() == 0) return;
  Add(Halves{phase, table}, table.bytes());
}

void LaunchSequence::AddProduct(const DeviceProduct& product) { Add(product, 0); }

void LaunchSequence::CopyTo(void* to, void* at) const {
  for (size_t i = 0; i < operations_.size(); ++i) {
    const Operation& operation = operations_[i];
    void* const here = At(to, operation.at);
    if (const auto* formula = absl::get_if<Formula>(&operation.what)) formula->table.CopyTo(here);
    if (const auto* squares = absl::get_if<Squares>(&operation.what)) squares->table.CopyTo(here);
    if (const auto* of = absl::get_if<Matrices>(&operation.what)) of->table.CopyTo(here);
    if (const auto* of = absl::get_if<Halves>(&operation.what)) of->table.CopyTo(here);
    if (const auto* steps = absl::get_if<Steps>(&operation.what)) {
      std::vector<StepSize> sizes = steps->sizes;
      for (size_t k = 0; k < sizes.size(); ++k) {
        sizes[k].to = At(at, operations_[i + 1].at + steps->to[k]);
      }
      std::memcpy(here, sizes.data(), sizes.size() * sizeof(StepSize));
    }
  }
}

absl::Status LaunchSequence::ForEachFormula(
    absl::FunctionRef<absl::Status(const char* formula, const LaunchTable& table)> use) const {
  for (const Operation& operation : operations_) {
    const auto* const formula = absl::get_if<Formula>(&operation.what);
    if (formula == nullptr) continue;
    absl::Status status = use(formula->formula, formula->table);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status LaunchSequence::ForEachProduct(
    absl::FunctionRef<absl::Status(const DeviceProduct& product)> use) const {
  for (const Operation& operation : operations_) {
    const auto* const product = absl::get_if<DeviceProduct>(&operation.what);
    if (product == nullptr) continue;
    absl::Status status = use(*product);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status LaunchSequence::Run(const void* at, SequenceRunner& runner) const {
  absl::Status status;
  for (const Operation& operation : operations_) {
    const void* const here = At(at, operation.at);
    if (const auto* formula = absl::get_if<Formula>(&operation.what)) {
      status = runner.RunFormula(formula->formula, formula->table, here);
    }
    if (const auto* squares = absl::get_if<Squares>(&operation.what)) {
      status =
          runner.RunSquares(squares->table.ArgumentsAt(here, squares->sums), squares->of_spans);
    }
    if (const auto* steps = absl::get_if<Steps>(&operation.what)) {
      StepSizeArguments arguments;
      arguments.steps = static_cast<const StepSize*>(here);
      arguments.count = static_cast<int32_t>(steps->sizes.size());
      arguments.is_double = steps->is_double;
      arguments.sums = steps->sums;
      status = runner.RunStepSizes(arguments);
    }
    if (const auto* of = absl::get_if<Matrices>(&operation.what)) {
      status = runner.RunMatrices(of->phase, of->table.is_double(), of->table.ArgumentsAt(here));
    }
    if (const auto* of = absl::get_if<Halves>(&operation.what)) {
      status = runner.RunHalves(of->phase, of->table.is_double(), of->table.ArgumentsAt(here));
    }
    if (const auto* product = absl::get_if<DeviceProduct>(&operation.what)) {
      status = runner.RunProduct(*product);
    }
    if (!status.ok()) return status;
  }
  return status;
}

}  // namespace optshard

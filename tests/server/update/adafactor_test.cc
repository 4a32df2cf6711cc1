// Adafactor against its formula, written out in double: matrices of every proportion, which the
// rule works on some rows or some matrices at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/parameter_space.h"
#include "server/update/update_rule.h"

namespace optshard::testing {
namespace {

double RootMeanSquare(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

// With the default options.
struct Formula {
  explicit Formula(const std::vector<int64_t>& shape)
      : rows(shape[shape.size() - 2]),
        columns(shape.back()),
        row_var(ElementsOf(shape) / columns),
        col_var(ElementsOf(shape) / rows) {}

  void Step(int step, const std::vector<float>& gradient) {
    const double weight = std::pow(step, -0.8);
    const double size = std::max(1e-3, RootMeanSquare(parameter)) *
                        std::min(1e-2, 1 / std::sqrt(static_cast<double>(step)));
    for (double& average : row_var) average *= 1 - weight;
    for (double& average : col_var) average *= 1 - weight;
    for (size_t i = 0; i < gradient.size(); ++i) {
      const double square = static_cast<double>(gradient[i]) * gradient[i];
      row_var[i / columns] += weight * square / static_cast<double>(columns);
      col_var[ColumnOf(i)] += weight * square / static_cast<double>(rows);
    }
    std::vector<double> means(row_var.size() / rows);  // by matrix
    for (size_t row = 0; row < row_var.size(); ++row) {
      means[row / rows] += row_var[row] / static_cast<double>(rows);
    }
    std::vector<double> update(gradient.size());
    for (size_t i = 0; i < gradient.size(); ++i) {
      update[i] = gradient[i] / std::sqrt(row_var[i / columns] * col_var[ColumnOf(i)] /
                                          means[i / (rows * columns)]);
    }
    const double clip = std::max(1.0, RootMeanSquare(update));
    for (size_t i = 0; i < update.size(); ++i) parameter[i] -= size / clip * update[i];
  }

  size_t ColumnOf(size_t i) const { return i / (rows * columns) * columns + i % columns; }

  size_t rows;
  size_t columns;
  std::vector<double> parameter, row_var, col_var;
};

void ExpectClose(const std::vector<float>& actual, const std::vector<double>& expected,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 1e-6 * largest) << what << ", " << i;
  }
}

TEST(Adafactor, MatricesOfAnyProportions_AreSteppedByTheFormula) {
  const UpdateRule& rule = **RuleRegistry::Find("adafactor");
  const Hyperparameters group = *rule.Validate({});
  const std::vector<std::vector<int64_t>> shapes = {{3, 20011},      {20011, 1},   {300, 101},
                                                    {17, 3, 40, 30}, {4001, 3, 3}, {17000, 1, 1},
                                                    {2, 150, 120},   {1, 1}};
  for (const std::vector<int64_t>& shape : shapes) {
    SCOPED_TRACE(absl::StrJoin(shape, ", "));
    const int64_t elements = ElementsOf(shape);
    Formula formula(shape);
    // Values whose sizes differ by row and by column.
    std::vector<float> parameter(elements), gradient(elements);
    for (int64_t i = 0; i < elements; ++i) {
      parameter[i] = std::sin(0.3f * static_cast<float>(i % 1009));
    }
    formula.parameter.assign(parameter.begin(), parameter.end());
    std::vector<float> row_var(formula.row_var.size()), col_var(formula.col_var.size());
    std::vector<double> workspace(rule.WorkspaceBytes(shape, DType::kFloat32) / sizeof(double));
    SpanUpdate span;
    span.parameter = parameter.data();
    span.gradient = gradient.data();
    span.slots = {row_var.data(), col_var.data()};
    span.elements = elements;
    span.shape = shape;
    span.workspace = workspace.data();
    for (int step = 1; step <= 2; ++step) {
      for (int64_t i = 0; i < elements; ++i) {
        const int64_t row = i / shape.back();
        gradient[i] = (1.5f + std::sin(static_cast<float>(7 * row % 97 + step))) *
                      (1.1f + std::cos(static_cast<float>(i % 89 * step)));
      }
      rule.Update(DriverKind::kSimd, rule.Prepare(group, step), span);
      formula.Step(step, gradient);
    }
    ExpectClose(row_var, formula.row_var, "row_var");
    ExpectClose(col_var, formula.col_var, "col_var");
    ExpectClose(parameter, formula.parameter, "parameter");
  }
}

// One step with the default options, from state of zeros.
template <typename T>
void StepOnce(const std::vector<int64_t>& shape, std::vector<T>* parameter,
              const std::vector<T>& gradient) {
  constexpr DType kType = sizeof(T) == 8 ? DType::kFloat64 : DType::kFloat32;
  const UpdateRule& rule = **RuleRegistry::Find("adafactor");
  const Hyperparameters group = *rule.Validate({});
  const std::vector<Slot> slots = rule.Slots(group);
  std::vector<std::vector<T>> values;
  SpanUpdate span;
  for (size_t k = 0; k < slots.size(); ++k) {
    values.emplace_back(slots[k].ValuesFor(shape, ElementsOf(shape)));
  }
  for (size_t k = 0; k < slots.size(); ++k) {
    if (!values[k].empty()) span.slots[k] = values[k].data();
  }
  std::vector<double> workspace(rule.WorkspaceBytes(shape, kType) / sizeof(double));
  span.parameter = parameter->data();
  span.gradient = gradient.data();
  span.elements = ElementsOf(shape);
  span.shape = shape;
  span.workspace = workspace.data();
  rule.Update(DriverKind::kSimd, rule.Prepare(group, 1, kType), span);
}

TEST(Adafactor, MatrixWithAGradientOfZeros_Stays) {
  std::vector<float> parameter(12, 2);
  StepOnce<float>({3, 4}, &parameter, std::vector<float>(12));
  EXPECT_EQ(parameter, std::vector<float>(12, 2));
}

// The step is scaled by the size of the whole vector, which is worked on in chunks.
TEST(Adafactor, LongVector_IsSteppedByTheSizeOfAllOfIt) {
  constexpr int64_t kElements = 50000;
  std::vector<float> parameter(kElements);
  std::fill(parameter.begin() + kElements / 2, parameter.end(), 4.0f);
  StepOnce<float>({kElements}, &parameter, std::vector<float>(kElements, 1));
  EXPECT_NEAR(parameter[0], -1e-2 * 4 / std::sqrt(2.0), 1e-6);
}

// 1e-9 is smaller than the machine epsilon of float32, and larger than that of float64.
TEST(Adafactor, SmallGradientOfAFloat64Parameter_IsDividedByItsOwnSize) {
  std::vector<double> parameter = {2};
  StepOnce<double>({1}, &parameter, {1e-9});
  EXPECT_NEAR(parameter[0], 2 - 2 * 1e-2, 1e-9);
}

}  // namespace
}  // namespace optshard::testing

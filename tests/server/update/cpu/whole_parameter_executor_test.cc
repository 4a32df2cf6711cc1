#include "server/update/cpu/whole_parameter_executor.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/update/rule_cases.h"

namespace optshard::testing {
namespace {

TEST(WholeParameterExecutorTest, Start_AnyThreadCount_SameBitsAsOneByOne) {
  for (const RuleCase& rule_case : AllRuleCases()) {
    if (rule_case.rule->spec().element_wise) continue;
    const Coefficients coefficients = rule_case.rule->Prepare(rule_case.group, 3);
    std::vector<RuleData> start;
    int64_t workspace_bytes = 0;
    uint32_t seed = 7;
    for (const int64_t elements : {1, 30011, 17, 9000, 64, 25000, 3, 40000, 30000}) {
      start.emplace_back(&rule_case, elements, 0, /*specials=*/false, seed++);
      workspace_bytes = std::max(
          workspace_bytes, rule_case.rule->WorkspaceBytes(start.back().shape(), DType::kFloat32));
    }
    std::vector<RuleData> expected = start;
    for (RuleData& data : expected) {
      rule_case.rule->Update(DriverKind::kScalar, coefficients, data.Span());
    }
    workspace_bytes = (workspace_bytes + 63) / 64 * 64;
    for (int count = 1; count <= 4; ++count) {
      WorkerThreads threads(count);
      AlignedFloats workspaces(count * workspace_bytes / sizeof(float));
      WholeParameterExecutor executor(&threads, DriverKind::kSimd, workspaces.data(),
                                      workspace_bytes);
      std::vector<RuleData> actual = start;
      std::vector<UpdateTask> tasks;
      for (RuleData& data : actual) {
        tasks.push_back({&coefficients, data.Span()});
        tasks.back().span.workspace = nullptr;  // the executor's is used
      }
      const absl::StatusOr<std::unique_ptr<Ticket>> ticket =
          executor.Start({}, *rule_case.rule, tasks);
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      EXPECT_TRUE((*ticket)->Wait(absl::InfiniteFuture()).ok());
      for (size_t i = 0; i < actual.size(); ++i) {
        ASSERT_EQ(actual[i].DifferenceTo(expected[i]), "")
            << rule_case.name << ", parameter " << i << ", " << count << " threads";
      }
    }
  }
}

// Remembers what it was asked to update, by numbers of elements.
class CostlyRule final : public UpdateRule {
 public:
  explicit CostlyRule(bool has_costs) : has_costs_(has_costs) {}
  const RuleSpec& spec() const override { return spec_; }
  int64_t UpdateCost(absl::Span<const int64_t> shape) const override {
    return has_costs_ ? shape[0] * shape[0] * shape[1] : 0;
  }
  void Update(DriverKind, const Coefficients&, const SpanUpdate& span) const override {
    updated_.push_back(span.elements);
  }
  const std::vector<int64_t>& updated() const { return updated_; }

 protected:
  void SetCoefficients(const Hyperparameters&, StepNumber, Coefficients*) const override {}

 private:
  const bool has_costs_;
  const RuleSpec spec_;
  mutable std::vector<int64_t> updated_;  // on one thread
};

TEST(WholeParameterExecutorTest, Start_OneThread_BeginsWithWhatCostsMost) {
  const std::vector<std::vector<int64_t>> shapes = {{1, 1000}, {50, 10}, {2, 300}, {20, 20}};
  const Coefficients coefficients;
  std::vector<UpdateTask> tasks;
  for (const auto& shape : shapes) {
    tasks.push_back({&coefficients, {}});
    tasks.back().span.shape = shape;
    tasks.back().span.elements = shape[0] * shape[1];
  }
  WorkerThreads threads(1);
  WholeParameterExecutor executor(&threads, DriverKind::kSimd, nullptr, 0);
  const CostlyRule with_costs(true);
  ASSERT_TRUE(executor.Start({}, with_costs, tasks).ok());
  EXPECT_EQ(with_costs.updated(), (std::vector<int64_t>{500, 400, 600, 1000}));
  // A rule that declares no costs is measured by elements.
  const CostlyRule without(false);
  ASSERT_TRUE(executor.Start({}, without, tasks).ok());
  EXPECT_EQ(without.updated(), (std::vector<int64_t>{1000, 600, 500, 400}));
}

TEST(WholeParameterExecutorTest, Start_NoTasks_IsComplete) {
  WorkerThreads threads(2);
  WholeParameterExecutor executor(&threads, DriverKind::kSimd, nullptr, 0);
  const auto ticket = executor.Start({}, **RuleRegistry::Find("lamb"), {});
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_TRUE((*ticket)->Wait(absl::InfiniteFuture()).ok());
}

}  // namespace
}  // namespace optshard::testing

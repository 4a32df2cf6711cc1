// Kernels of every rule that has some, run on the host thread by thread: the bits of the CPU's
// drivers.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "server/update/cuda/formula_kernels.h"
#include "server/update/cuda/launch_table.h"
#include "server/update/cuda/norm_scaled_launches.h"
#include "server/update/cuda/norm_scaled_rule.h"
#include "server/update/cuda/step_size_body.h"
#include "tests/server/update/cuda/kernel_jobs.h"
#include "tests/server/update/cuda/squares_on_host.h"
#include "tests/server/update/rule_cases.h"

namespace optshard::testing {
namespace {

constexpr uint32_t kSeed = 20261126;

int Launch(const FormulaKernels& kernels, const LaunchTable& table, int blocks, const void* at,
           const StepDecision* decision) {
  const KernelGrid grid = {blocks, nullptr};
  if (table.arithmetic() == DType::kFloat64) {
    return kernels.float64.launch(table.slots(), table.pass(),
                                  table.ArgumentsAt<double>(at, CodeTables(), decision), grid);
  }
  return kernels.float32.launch(table.slots(), table.pass(),
                                table.ArgumentsAt<float>(at, CodeTables(), decision), grid);
}

void Run(const char* formula, const std::vector<LaunchTable>& tables, int blocks,
         const StepDecision* decision) {
  const FormulaKernels* const kernels = FormulaKernelRegistry::Find(formula);
  ASSERT_NE(kernels, nullptr) << "no kernels of " << formula;
  for (const LaunchTable& table : tables) {
    AlignedFloats copy(table.bytes() / sizeof(float));
    table.CopyTo(copy.data());
    EXPECT_EQ(Launch(*kernels, table, blocks, copy.data(), decision), 0);
  }
}

void RunBatch(const NormScaledRule& rule, absl::Span<const UpdateTask> tasks, int blocks) {
  AlignedFloats directions(NormScaledLaunches::DirectionBytes(tasks) / sizeof(float) + 1);
  const auto launches = NormScaledLaunches::For(rule, tasks, directions.data());
  ASSERT_TRUE(launches.ok()) << launches.status();
  Run(rule.direction, launches->directions(), blocks, nullptr);
  AlignedFloats squares(launches->squares().bytes() / sizeof(float) + 1);
  launches->squares().CopyTo(squares.data());
  AlignedFloats of_sums(launches->squares().bytes_of_sums() / sizeof(float) + 1);
  const SquaresArguments sums = launches->squares().ArgumentsAt(squares.data(), of_sums.data());
  RunSquaresOnHost(sums);
  const FormulaKernels* const kernels = FormulaKernelRegistry::Find(rule.step);
  ASSERT_NE(kernels, nullptr) << "no kernels of " << rule.step;
  for (const NormScaledLaunches::Step& step : launches->steps()) {
    AlignedFloats copy(step.bytes() / sizeof(float) + 1);
    step.CopyTo(copy.data(), copy.data());
    const StepSizeArguments sizes = step.SizesAt(copy.data(), sums.of_spans);
    for (int32_t i = 0; i < sizes.count; ++i) kernels::SetStepSize(sizes, i);
    EXPECT_EQ(Launch(*kernels, step.table(), blocks, copy.data(), nullptr), 0);
  }
}

void RunWithNorms(const NormScaledRule& rule, const std::vector<UpdateTask>& tasks, int blocks) {
  // Several batches, which share the memory of the directions.
  for (const auto& batch : NormScaledLaunches::Batches(tasks, 16 << 10)) {
    RunBatch(rule, batch, blocks);
  }
}

// What the rule's kernels make of the job.
std::vector<char> AfterKernels(const KernelJob& job, int blocks,
                               const StepDecision* decision = nullptr) {
  AlignedFloats memory(job.start().size() / sizeof(float) + 1);
  auto* const at = reinterpret_cast<char*>(memory.data());
  std::copy(job.start().begin(), job.start().end(), at);
  const std::vector<UpdateTask> tasks = job.TasksAt(at);
  const NormScaledRule* const scaled = NormScaledRules::Find(job.rule().spec().name);
  if (scaled != nullptr) {
    RunWithNorms(*scaled, tasks, blocks);
  } else {
    const auto tables = LaunchTable::For(tasks);
    EXPECT_TRUE(tables.ok()) << tables.status();
    Run(job.rule().formula(), *tables, blocks, decision);
  }
  return std::vector<char>(at, at + job.start().size());
}

RuleCase CaseOf(const std::string& rule) {
  for (const RuleCase& rule_case : KernelRuleCases()) {
    if (rule_case.rule->spec().name == rule) return rule_case;
  }
  ADD_FAILURE() << "no case of " << rule;
  return {};
}

class KernelsOnHostTest : public ::testing::TestWithParam<JobKind> {};

TEST_P(KernelsOnHostTest, EveryRule_AnySizeAndAlignment_BitsOfTheCpu) {
  uint32_t seed = kSeed;
  int jobs = 0;
  for (const RuleCase& rule_case : KernelRuleCases()) {
    if (!Takes(rule_case, GetParam())) continue;
    for (const JobShape& shape : JobShapes(GetParam())) {
      const KernelJob job(rule_case, shape, 1 + seed % 3, seed);
      const int blocks = 1 + static_cast<int>(seed % 7);
      ASSERT_EQ(KernelJob::Difference(job, AfterKernels(job, blocks), job.Expected()), "")
          << rule_case.name << ", seed " << seed << ", " << blocks << " blocks";
      ++seed;
      ++jobs;
    }
  }
  EXPECT_GT(jobs, 0);
  CaseOf("lamb");
}

INSTANTIATE_TEST_SUITE_P(Types, KernelsOnHostTest, ::testing::ValuesIn(kJobKinds),
                         [](const auto& info) { return NameOf(info.param); });

TEST(StepDecisionTest, Skipped_NothingChanges) {
  const RuleCase adam = CaseOf("adam");
  const StepDecision skipped = {0};
  for (const JobKind kind : kJobKinds) {
    const KernelJob job(adam, {kind, {5000, 300}}, 2, kSeed);
    EXPECT_EQ(AfterKernels(job, 2, &skipped), job.start()) << NameOf(kind);
  }
}

}  // namespace
}  // namespace optshard::testing

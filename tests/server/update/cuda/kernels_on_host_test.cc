// Kernels of every rule that has some, run on the host thread by thread: the bits of the CPU's
// drivers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/update/cuda/formula_kernels.h"
#include "server/update/cuda/launch_sequence.h"
#include "server/update/cuda/launch_table.h"
#include "server/update/cuda/sequenced_rule.h"
#include "server/update/cuda/step_size_body.h"
#include "tests/server/update/cuda/halves_on_host.h"
#include "tests/server/update/cuda/kernel_jobs.h"
#include "tests/server/update/cuda/matrices_on_host.h"
#include "tests/server/update/cuda/products_on_host.h"
#include "tests/server/update/cuda/squares_on_host.h"
#include "tests/server/update/rule_cases.h"

namespace optshard::testing {
namespace {

using ::testing::IsSupersetOf;

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

// All blocks and threads, one after the other.
class HostRunner final : public SequenceRunner {
 public:
  explicit HostRunner(int blocks) : blocks_(blocks) {}

  absl::Status RunFormula(const char* formula, const LaunchTable& table, const void* at) override {
    const FormulaKernels* const kernels = FormulaKernelRegistry::Find(formula);
    if (kernels == nullptr) return absl::InternalError(absl::StrCat("no kernels of ", formula));
    EXPECT_EQ(Launch(*kernels, table, blocks_, at, nullptr), 0);
    return absl::OkStatus();
  }
  absl::Status RunSquares(const SquaresArguments& arguments, bool of_spans) override {
    RunSquaresOnHost(arguments, of_spans);
    return absl::OkStatus();
  }
  absl::Status RunStepSizes(const StepSizeArguments& arguments) override {
    for (int32_t i = 0; i < arguments.count; ++i) kernels::SetStepSize(arguments, i);
    return absl::OkStatus();
  }
  absl::Status RunMatrices(MatricesPhase phase, bool is_double,
                           const MatricesArguments& arguments) override {
    is_double ? RunMatricesOnHost<double>(phase, arguments)
              : RunMatricesOnHost<float>(phase, arguments);
    return absl::OkStatus();
  }
  absl::Status RunHalves(HalvesPhase phase, bool is_double,
                         const HalvesArguments& arguments) override {
    is_double ? RunHalvesOnHost<double>(phase, arguments)
              : RunHalvesOnHost<float>(phase, arguments);
    return absl::OkStatus();
  }
  absl::Status RunProduct(const DeviceProduct& product) override {
    most_products = std::max(most_products, product.shape.count);
    return RunProductOnHost(product);
  }

  static int64_t most_products;  // that were computed at once

 private:
  const int blocks_;
};

int64_t HostRunner::most_products = 0;

// In batches of at most so much workspace, which share it. What it held before does not matter.
void RunSequenced(const SequencedRule& rule, const std::vector<UpdateTask>& tasks, int blocks,
                  int64_t most_bytes) {
  for (const auto& batch : rule.Batches(tasks, most_bytes)) {
    AlignedFloats workspace(rule.WorkspaceBytes(batch) / sizeof(float), NAN);
    const auto sequence = rule.SequenceOf(batch, workspace.data());
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    AlignedFloats copy(sequence->bytes() / sizeof(float));
    sequence->CopyTo(copy.data(), copy.data());
    HostRunner runner(blocks);
    EXPECT_EQ(sequence->Run(copy.data(), runner), absl::OkStatus());
  }
}

// What the rule's kernels make of the job.
std::vector<char> AfterKernels(const KernelJob& job, int blocks,
                               const StepDecision* decision = nullptr) {
  AlignedFloats memory(job.start().size() / sizeof(float) + 1);
  auto* const at = reinterpret_cast<char*>(memory.data());
  std::copy(job.start().begin(), job.start().end(), at);
  const std::vector<UpdateTask> tasks = job.TasksAt(at);
  const auto sequenced = SequencedRule::Find(job.rule().spec().name);
  if (sequenced != nullptr) {
    // Many batches, or all at once.
    RunSequenced(*sequenced, tasks, blocks, blocks % 2 == 0 ? 16 << 10 : 64 << 20);
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
  std::set<std::string> rules;
  HostRunner::most_products = 0;
  for (const RuleCase& rule_case : KernelRuleCases()) {
    if (!Takes(rule_case, GetParam())) continue;
    for (const JobShape& shape : JobShapes(rule_case, GetParam())) {
      const KernelJob job(rule_case, shape, 1 + seed % 3, seed);
      const int blocks = 1 + static_cast<int>(seed % 7);
      ASSERT_EQ(KernelJob::Difference(job, AfterKernels(job, blocks), job.Expected()), "")
          << rule_case.name << ", seed " << seed << ", " << blocks << " blocks";
      ++seed;
      rules.insert(rule_case.rule->spec().name);
    }
  }
  EXPECT_THAT(rules, IsSupersetOf({"adam", "lamb", "muon"}));
  EXPECT_GT(HostRunner::most_products, 2);
  const bool are_codes = GetParam() == JobKind::kCoded || GetParam() == JobKind::kCodedFloat32;
  EXPECT_EQ(rules.count("adafactor"), are_codes ? 0 : 1);  // its state has no codes
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

// Kernels of every rule that has some, on a GPU: the bits of the CPU's drivers. Steps of those that
// multiply matrices are near the CPU's.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/cuda/cuda_memory.h"
#include "gtest/gtest.h"
#include "server/update/cuda/cuda_executor.h"
#include "server/update/cuda/squares.h"
#include "server/update/cuda/squares_table.h"
#include "tests/server/update/cuda/kernel_jobs.h"
#include "tests/server/update/cuda/squares_jobs.h"
#include "tests/server/update/rule_cases.h"

namespace optshard::testing {
namespace {

constexpr uint32_t kSeed = 20261126;

absl::Time Soon() { return Clock::Monotonic().Now() + absl::Seconds(30); }

class KernelsOnDeviceTest : public ::testing::TestWithParam<JobKind> {
 protected:
  void SetUp() override {
    auto executor = CudaExecutor::Create(0);
    ASSERT_TRUE(executor.ok()) << executor.status();
    executor_ = *std::move(executor);
  }

  // After updates of so many spans at a time.
  std::vector<char> AfterKernels(const KernelJob& job, size_t at_once = 1000) {
    if (memory_.bytes() < job.start().size()) {
      auto memory = CudaMemory::OnDevice(2 * job.start().size());
      EXPECT_TRUE(memory.ok()) << memory.status();
      memory_ = *std::move(memory);
    }
    void* const at = memory_.data();
    const size_t bytes = job.start().size();
    EXPECT_EQ(cudaMemcpy(at, job.start().data(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
    {
      const std::vector<UpdateTask> tasks = job.TasksAt(at);
      for (absl::Span<const UpdateTask> left = tasks; !left.empty();
           left.remove_prefix(std::min(at_once, left.size()))) {
        auto ticket = executor_->Start({"cuda:0", nullptr}, job.rule(), left.subspan(0, at_once));
        EXPECT_TRUE(ticket.ok()) << ticket.status();
        if (!ticket.ok()) break;
        const absl::Status status = (*ticket)->Wait(Soon());
        EXPECT_TRUE(status.ok()) << status;
      }
    }
    std::vector<char> after(bytes);
    EXPECT_EQ(cudaMemcpy(after.data(), at, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return after;
  }

  std::unique_ptr<Executor> executor_;
  CudaMemory memory_;
};

TEST_P(KernelsOnDeviceTest, EveryRule_AnySizeAndAlignment_BitsOfTheCpu) {
  uint32_t seed = kSeed;
  int jobs = 0;
  for (const RuleCase& rule_case : KernelRuleCases()) {
    if (!Takes(rule_case, GetParam()) || MultipliesMatrices(rule_case)) continue;
    for (JobShape shape : JobShapes(rule_case, GetParam())) {
      // More than one chunk for each block of the grid, once.
      if (jobs == 0) shape.elements = {9000000};
      const KernelJob job(rule_case, shape, 1 + seed % 3, seed);
      ASSERT_EQ(KernelJob::Difference(job, AfterKernels(job), job.Expected()), "")
          << rule_case.name << ", seed " << seed;
      ++seed;
      ++jobs;
    }
  }
  EXPECT_GT(jobs, 0);
  RecordProperty("jobs", jobs);
}

// More than one batch, and more of each kind of work than a grid has blocks for.
TEST_P(KernelsOnDeviceTest, LargeParametersOfRulesThatNeedThemWhole_BitsOfTheCpu) {
  if (GetParam() != JobKind::kFloat32 && GetParam() != JobKind::kBFloat16Master) return;
  const JobShape shape = JobShape::OfShapes(
      GetParam(),
      {{1500, 2000}, {2000000, 2}, {1200, 50, 40}, {900000, 3, 1}, {3, 1000000}, {5000}});
  std::set<std::string> done;
  for (const RuleCase& rule_case : KernelRuleCases()) {
    if (rule_case.rule->spec().element_wise || MultipliesMatrices(rule_case)) continue;
    if (!rule_case.rule->CheckParameter({5000}).ok()) continue;  // of matrices alone
    if (!done.insert(rule_case.rule->spec().name).second) continue;
    const KernelJob job(rule_case, shape, 2, kSeed);
    ASSERT_EQ(KernelJob::Difference(job, AfterKernels(job), job.Expected()), "") << rule_case.name;
  }
  EXPECT_EQ(done.size(), 2);
}

// Rounded to bfloat16 in another order than the CPU does. Parameters that were zero are the steps.
TEST_P(KernelsOnDeviceTest, RulesThatMultiplyMatrices_StepsNearTheCpus) {
  // More than one batch, too.
  JobShape shape = JobShape::OfShapes(GetParam(), {{40, 50},
                                                   {7, 7},
                                                   {50, 40},
                                                   {7, 7},
                                                   {40, 50},
                                                   {7, 7},
                                                   {1500, 1200},
                                                   {7, 7},
                                                   {1200, 1500},
                                                   {7, 7},
                                                   {40, 50},
                                                   {7, 7},
                                                   {1, 70},
                                                   {7, 7},
                                                   {1500, 1200}});
  shape.zeros = true;
  int jobs = 0;
  for (const RuleCase& rule_case : KernelRuleCases()) {
    if (!MultipliesMatrices(rule_case) || !Takes(rule_case, GetParam())) continue;
    const KernelJob job(rule_case, shape, 2, kSeed);
    const std::vector<char> after = AfterKernels(job);
    // What a rank computes does not depend on what else it owns.
    EXPECT_TRUE(AfterKernels(job, 1) == after) << rule_case.name;
    const std::vector<char> expected = job.Expected();
    EXPECT_EQ(KernelJob::DifferenceOfSlots(job, after, expected), "") << rule_case.name;
    for (size_t task = 0; task < shape.shapes.size(); task += 2) {
      const std::vector<double> a = job.Parameter(task, after);
      const std::vector<double> b = job.Parameter(task, expected);
      double difference = 0;
      double all = 0;
      for (size_t i = 0; i < b.size(); ++i) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        all += b[i] * b[i];
      }
      EXPECT_GT(all, 0) << rule_case.name << ", span " << task;
      EXPECT_LT(std::sqrt(difference / all), 0.03) << rule_case.name << ", span " << task;
    }
    ++jobs;
  }
  EXPECT_GT(jobs, 0);
}

INSTANTIATE_TEST_SUITE_P(Types, KernelsOnDeviceTest, ::testing::ValuesIn(kJobKinds),
                         [](const auto& info) { return NameOf(info.param); });

TEST(SquaresOnDeviceTest, AnyTypeSizeAndAlignment_BitsOfTheCpu) {
  for (const SquaresShape& shape : SquaresShapes()) {
    for (uint32_t seed = 0; seed < 8; ++seed) {
      const SquaresJob job(shape, seed);
      const auto memory = CudaMemory::OnDevice(job.memory().size());
      ASSERT_TRUE(memory.ok()) << memory.status();
      ASSERT_EQ(cudaMemcpy(memory->data(), job.memory().data(), job.memory().size(),
                           cudaMemcpyHostToDevice),
                cudaSuccess);
      const SquaresTable table = job.TableAt(memory->data());
      const auto at = CudaMemory::OnDevice(table.bytes() + 1);
      ASSERT_TRUE(at.ok()) << at.status();
      const auto of_sums = CudaMemory::OnDevice(table.bytes_of_sums() + 1);
      ASSERT_TRUE(of_sums.ok()) << of_sums.status();
      std::vector<char> copy(table.bytes());
      table.CopyTo(copy.data());
      ASSERT_EQ(cudaMemcpy(at->data(), copy.data(), copy.size(), cudaMemcpyHostToDevice),
                cudaSuccess);
      const SquaresArguments arguments = table.ArgumentsAt(at->data(), of_sums->data());
      // Fewer blocks than there is work for, too.
      ASSERT_EQ(
          LaunchSquares(arguments, SquaresOf::kBlocksAndSpans, {seed % 2 == 0 ? 1 : 1000, nullptr}),
          0);
      std::vector<SumOfSquaresOnDevice> sums(arguments.span_count);
      ASSERT_EQ(cudaMemcpy(sums.data(), arguments.of_spans,
                           sums.size() * sizeof(SumOfSquaresOnDevice), cudaMemcpyDeviceToHost),
                cudaSuccess);
      EXPECT_EQ(job.Difference(sums.data()), "") << "seed " << seed;
    }
  }
}

TEST(CudaExecutorTest, NoSuchDevice_RefusedWithWhatThereIs) {
  const auto executor = CudaExecutor::Create(1000);
  ASSERT_FALSE(executor.ok());
  EXPECT_EQ(executor.status().code(), absl::StatusCode::kFailedPrecondition) << executor.status();
  EXPECT_NE(executor.status().message().find("cuda:1000"), std::string::npos);
}

TEST(CudaExecutorTest, OtherDevicesStream_Refused) {
  auto executor = CudaExecutor::Create(0);
  ASSERT_TRUE(executor.ok()) << executor.status();
  const RuleCase rule_case = ElementWiseRuleCases().front();
  const auto ticket = (*executor)->Start({"cpu", nullptr}, *rule_case.rule, {});
  EXPECT_EQ(ticket.status().code(), absl::StatusCode::kInvalidArgument) << ticket.status();
}

TEST(CudaMemoryTest, MoreThanThereIs_NeedAndFreeAreSaid) {
  const auto memory = CudaMemory::OnDevice(size_t{1} << 50);
  ASSERT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted) << memory.status();
  EXPECT_NE(memory.status().message().find("1048576.00 GiB are needed"), std::string::npos)
      << memory.status();
  // Nothing is broken by it.
  EXPECT_TRUE(CudaMemory::OnDevice(1024).ok());
}

}  // namespace
}  // namespace optshard::testing

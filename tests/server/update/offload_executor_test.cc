// Updates on the host of parameters on a fake device, through small windows.
#include "server/update/offload_executor.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/update/cpu/cpu_executor.h"
#include "server/update/cpu/worker_threads.h"
#include "tests/server/update/cuda/kernel_jobs.h"
#include "tests/server/update/rule_cases.h"
#include "tests/testing/fake_device.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kSeed = 7;
constexpr int64_t kWindowBytes = 4096;  // 1,024 elements

// The host's, which must be given nothing that is on the device.
class OnHost final : public Executor {
 public:
  OnHost(std::unique_ptr<Executor> executor, const std::set<const void*>* on_device, int* starts)
      : executor_(std::move(executor)), on_device_(*on_device), starts_(*starts) {}

  absl::StatusOr<std::unique_ptr<Ticket>> Start(const ExecutionContext& context,
                                                const UpdateRule& rule,
                                                absl::Span<const UpdateTask> tasks) override {
    ++starts_;
    for (const UpdateTask& task : tasks) {
      EXPECT_EQ(on_device_.count(task.span.parameter.data()), 0);
      EXPECT_EQ(on_device_.count(task.span.gradient.data()), 0);
    }
    return executor_->Start(context, rule, tasks);
  }

 private:
  const std::unique_ptr<Executor> executor_;
  const std::set<const void*>& on_device_;
  int& starts_;
};

class OffloadExecutorTest : public ::testing::Test {
 protected:
  void SetUp() override { MakeExecutor(); }

  void MakeExecutor(int64_t whole_bytes = 0, int64_t workspace_bytes = 0) {
    workspaces_.resize(workspace_bytes * 2 / sizeof(float));
    OffloadExecutor::Options options;
    options.device = device_.get();
    options.on_host = std::make_unique<OnHost>(
        *CpuExecutor::Create({&threads_, DriverKind::kSimd, workspaces_.data(), workspace_bytes}),
        &on_device_, &starts_);
    options.clock = &Clock::Monotonic();
    options.window_bytes = kWindowBytes;
    options.whole_bytes = whole_bytes;
    executor_ = *OffloadExecutor::Create(std::move(options));
  }

  UpdateTask TaskOf(const Coefficients& coefficients, RuleData& data) {
    UpdateTask task;
    task.coefficients = &coefficients;
    task.span = data.Span();
    task.span.shape = data.shape();
    on_device_.insert(task.span.parameter.data());
    on_device_.insert(task.span.gradient.data());
    return task;
  }

  // What Wait returns.
  absl::Status Run(const UpdateRule& rule, absl::Span<const UpdateTask> tasks,
                   absl::Duration timeout = absl::Seconds(20)) {
    const auto ticket = executor_->Start({"cuda:0", stream_.get()}, rule, tasks);
    if (!ticket.ok()) return ticket.status();
    return (*ticket)->Wait(Clock::Monotonic().Now() + timeout);
  }

  FakeDevices devices_;
  const std::shared_ptr<DeviceApi> device_ = devices_.Add("cuda:0", "GPU-0");
  const std::shared_ptr<void> stream_ = *device_->NewStream();
  WorkerThreads threads_{2};
  AlignedFloats workspaces_;
  std::set<const void*> on_device_;
  int starts_ = 0;  // of the host's executor
  std::unique_ptr<Executor> executor_;
};

TEST_F(OffloadExecutorTest, ManyTasks_HaveTheBitsOfTheHost) {
  for (const RuleCase& rule_case : AllRuleCases()) {
    const UpdateRule& rule = *rule_case.rule;
    std::vector<RuleData> data;
    uint32_t seed = kSeed;
    // Of one window, of several, and at their edges.
    for (const int64_t elements : {0, 1, 700, 300, 17, 5000, 1024, 1025, 2, 4096, 3}) {
      data.emplace_back(&rule_case, elements, static_cast<int>(elements % 5), false, seed++);
    }
    std::vector<RuleData> expected = data;
    const Coefficients coefficients = rule.Prepare(rule_case.group, 3);
    std::vector<UpdateTask> tasks, on_host;
    on_device_.clear();  // what comes next may lie where the last one was
    int64_t largest = 0;
    int64_t workspace = 64;
    for (RuleData& each : data) {
      tasks.push_back(TaskOf(coefficients, each));
      largest = std::max<int64_t>(largest, each.elements() * sizeof(float));
      workspace = std::max(workspace, rule.WorkspaceBytes(each.shape(), DType::kFloat32));
    }
    workspace = (workspace + 63) / 64 * 64;
    MakeExecutor(rule.spec().element_wise ? 0 : largest, workspace);
    ASSERT_EQ(Run(rule, tasks), absl::OkStatus());
    devices_.RunWhatCanRun();
    for (RuleData& each : expected) on_host.push_back({&coefficients, each.Span()});
    for (size_t i = 0; i < on_host.size(); ++i) on_host[i].span.shape = expected[i].shape();
    const auto host =
        *CpuExecutor::Create({&threads_, DriverKind::kScalar, workspaces_.data(), workspace});
    ASSERT_EQ((*host->Start({}, rule, on_host))->Wait(absl::InfiniteFuture()), absl::OkStatus());
    for (size_t i = 0; i < data.size(); ++i) {
      ASSERT_EQ(data[i].DifferenceTo(expected[i]), "") << rule_case.name << ", task " << i;
    }
  }
}

// Masters, corrections and codes stay with the piece of the parameter that is theirs.
TEST_F(OffloadExecutorTest, EveryType_HasTheBitsOfTheHost) {
  uint32_t seed = kSeed;
  for (const RuleCase& rule_case : ElementWiseRuleCases()) {
    for (const JobKind kind : kJobKinds) {
      if (!Takes(rule_case, kind)) continue;
      const bool aligned = seed % 2 == 0;
      const KernelJob job(rule_case, {kind, {0, 1, 700, 3, 5000, 1025, 9, 4097}, aligned}, 3,
                          seed++);
      AlignedFloats memory(job.start().size() / sizeof(float) + 1);
      auto* const at = reinterpret_cast<char*>(memory.data());
      std::copy(job.start().begin(), job.start().end(), at);
      const std::vector<UpdateTask> tasks = job.TasksAt(at);
      on_device_.clear();
      for (const UpdateTask& task : tasks) {
        if (task.span.elements > 0) on_device_.insert(task.span.parameter.data());
      }
      starts_ = 0;
      ASSERT_EQ(Run(*rule_case.rule, tasks), absl::OkStatus());
      EXPECT_GT(starts_, 5);
      devices_.RunWhatCanRun();
      const std::vector<char> after(at, at + job.start().size());
      ASSERT_EQ(KernelJob::Difference(job, after, job.Expected()), "")
          << rule_case.name << ", " << NameOf(kind) << ", seed " << seed - 1;
    }
  }
}

class OffloadedAdamTest : public OffloadExecutorTest {
 protected:
  // Of so many elements; all on the device.
  UpdateTask Adam(int64_t elements) {
    data_ = std::make_unique<RuleData>(&rule_case_, elements, 0, false, kSeed);
    return TaskOf(coefficients_, *data_);
  }
  std::unique_ptr<RuleData> Updated(int64_t elements) const {
    auto updated = std::make_unique<RuleData>(&rule_case_, elements, 0, false, kSeed);
    rule_case_.rule->Update(DriverKind::kScalar, coefficients_, updated->Span());
    return updated;
  }

  const RuleCase rule_case_ = ElementWiseRuleCases().front();
  const Coefficients coefficients_ = rule_case_.rule->Prepare(rule_case_.group, 3);
  std::unique_ptr<RuleData> data_;
};

TEST_F(OffloadedAdamTest, SmallTasks_ShareAWindow) {
  std::vector<std::unique_ptr<RuleData>> data;
  std::vector<UpdateTask> tasks;
  for (int i = 0; i < 100; ++i) {
    tasks.push_back(Adam(16));
    data.push_back(std::move(data_));
  }
  ASSERT_EQ(Run(*rule_case_.rule, tasks), absl::OkStatus());
  EXPECT_EQ(starts_, 2);  // 100 of 64 bytes each
  devices_.RunWhatCanRun();
  const auto updated = Updated(16);
  for (const auto& each : data) EXPECT_EQ(each->DifferenceTo(*updated), "");
}

// What is on the stream before is done before the update reads, and what comes behind Wait finds
// the updated values.
TEST_F(OffloadedAdamTest, Stream_IsBeforeAndBehindTheUpdates) {
  constexpr int64_t kElements = 10000;
  const UpdateTask task = Adam(kElements);
  auto* const gradient = static_cast<float*>(const_cast<void*>(task.span.gradient.data()));
  const std::vector<float> given(gradient, gradient + kElements);
  std::fill_n(gradient, kElements, 1e6f);
  int looks = 0;
  devices_.Enqueue(stream_.get(), [&] {
    if (++looks < 20) return false;
    std::copy(given.begin(), given.end(), gradient);
    return true;
  });
  ASSERT_EQ(Run(*rule_case_.rule, {task}), absl::OkStatus());
  std::vector<float> seen(kElements);
  devices_.Enqueue(stream_.get(), [&] {
    std::copy_n(task.span.parameter.As<float>(), kElements, seen.begin());
    return true;
  });
  devices_.RunWhatCanRun();
  const auto updated = Updated(kElements);
  EXPECT_EQ(data_->DifferenceTo(*updated), "");
  const float* const expected = updated->Span().parameter.As<float>();
  EXPECT_EQ(seen, std::vector<float>(expected, expected + kElements));
}

TEST_F(OffloadedAdamTest, DeviceThatDoesNothing_IsNamedAndNothingIsUpdated) {
  const UpdateTask task = Adam(10000);
  devices_.Enqueue(stream_.get(), [] { return false; });
  const absl::Status late = Run(*rule_case_.rule, {task}, absl::Milliseconds(10));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("cuda:0"));
  EXPECT_EQ(starts_, 0);
}

TEST_F(OffloadedAdamTest, PiecesAreAnnouncedBeforeTheyAreWritten) {
  UpdateTask task = Adam(10000);
  int64_t announced = 0;
  const float* const slot = task.span.slots[0].plain().As<float>();
  const std::vector<float> before(slot, slot + task.span.elements);
  const BeforePiece before_piece = [&](const SpanUpdate& piece) {
    const auto* const begin = piece.slots[0].plain().As<float>();
    EXPECT_TRUE(std::equal(begin, begin + piece.elements, before.begin() + (begin - slot)));
    announced += piece.elements;
  };
  task.before_piece = &before_piece;
  WorkerThreads alone(1);
  OffloadExecutor::Options options;
  options.device = device_.get();
  options.on_host = *CpuExecutor::Create({&alone, DriverKind::kSimd, nullptr, 0});
  options.clock = &Clock::Monotonic();
  options.window_bytes = kWindowBytes;
  executor_ = *OffloadExecutor::Create(std::move(options));
  ASSERT_EQ(Run(*rule_case_.rule, {task}), absl::OkStatus());
  EXPECT_EQ(announced, 10000);
  devices_.RunWhatCanRun();
  EXPECT_EQ(data_->DifferenceTo(*Updated(10000)), "");
}

// Create was told of smaller ones.
TEST_F(OffloadExecutorTest, WholeParameterThatIsTooLarge_IsAnError) {
  const std::vector<RuleCase> cases = AllRuleCases();
  const auto lamb = std::find_if(cases.begin(), cases.end(), [](const RuleCase& rule_case) {
    return rule_case.rule->spec().name == "lamb";
  });
  ASSERT_NE(lamb, cases.end());
  RuleData data(&*lamb, 5000, 0, false, kSeed);
  const Coefficients coefficients = lamb->rule->Prepare(lamb->group, 3);
  EXPECT_TRUE(absl::IsInternal(Run(*lamb->rule, {TaskOf(coefficients, data)})));
}

}  // namespace
}  // namespace optshard::testing

#include "server/update/cpu/span_executor.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/update/written_memory.h"
#include "tests/server/update/rule_cases.h"

namespace optshard::testing {
namespace {

constexpr uint32_t kSeed = 7;

// Sizes that leave cuts inside, at the edges of, and between spans; empty ones too.
std::vector<RuleData> Spans(const RuleCase& rule_case) {
  std::vector<RuleData> spans;
  uint32_t seed = kSeed;
  for (int64_t elements : {0, 1, 30011, 17, 0, 9000, 64, 25000, 3}) {
    const int misalignment = static_cast<int>(elements % 5);
    spans.emplace_back(&rule_case, elements, misalignment, /*specials=*/true, seed++);
  }
  return spans;
}

TEST(SpanExecutorTest, Run_AnyThreadCount_SameBitsAsScalarAlone) {
  for (const RuleCase& rule_case : ElementWiseRuleCases()) {
    std::vector<RuleData> expected = Spans(rule_case);
    const Coefficients coefficients = rule_case.rule->Prepare(rule_case.group, 3);
    for (RuleData& data : expected) {
      rule_case.rule->Update(DriverKind::kScalar, coefficients, data.Span());
    }
    for (int count = 1; count <= 4; ++count) {
      WorkerThreads threads(count);
      std::vector<RuleData> spans = Spans(rule_case);
      std::vector<UpdateTask> tasks;
      for (RuleData& data : spans) tasks.push_back({&coefficients, data.Span()});
      SpanExecutor(&threads, DriverKind::kSimd).Run(*rule_case.rule, tasks);
      for (size_t i = 0; i < spans.size(); ++i) {
        ASSERT_EQ(spans[i].DifferenceTo(expected[i]), "")
            << rule_case.name << ", span " << i << ", " << count << " threads";
      }
    }
  }
}

// What the update of the data would write, as it is now.
std::map<const char*, std::string> Written(const SpanUpdate& span) {
  std::map<const char*, std::string> written;
  ForEachWritten(span, [&](const void* data, int64_t bytes) {
    const char* const from = static_cast<const char*>(data);
    written[from].assign(from, static_cast<size_t>(bytes));
  });
  return written;
}

TEST(SpanExecutorTest, Run_InPieces_SaysBeforeEachWhatItWrites) {
  const RuleCase rule_case = ElementWiseRuleCases().back();
  const Coefficients coefficients = rule_case.rule->Prepare(rule_case.group, 3);
  for (int count = 1; count <= 3; ++count) {
    WorkerThreads threads(count);
    RuleData data(&rule_case, 100'003, 0, /*specials=*/false, kSeed);
    RuleData expected(&rule_case, 100'003, 0, /*specials=*/false, kSeed);
    rule_case.rule->Update(DriverKind::kScalar, coefficients, expected.Span());
    const std::map<const char*, std::string> before = Written(data.Span());
    std::mutex mutex;
    std::map<const char*, std::string> said;
    int pieces = 0;
    const BeforePiece before_piece = [&](const SpanUpdate& piece) {
      const std::lock_guard<std::mutex> lock(mutex);
      ++pieces;
      for (auto& [data, bytes] : Written(piece)) said.emplace(data, bytes);
    };
    const std::vector<UpdateTask> tasks = {{&coefficients, data.Span(), &before_piece}};
    SpanExecutor(&threads, DriverKind::kSimd).Run(*rule_case.rule, tasks);
    EXPECT_EQ(data.DifferenceTo(expected), "");
    EXPECT_GE(pieces, 4);
    // All of it, before it was written.
    for (const auto& [array, bytes] : before) {
      std::string all;
      for (auto part = said.find(array); all.size() < bytes.size();
           part = said.find(array + all.size())) {
        ASSERT_NE(part, said.end()) << rule_case.name;
        all += part->second;
      }
      EXPECT_TRUE(all == bytes) << rule_case.name;
    }
  }
}

TEST(SpanExecutorTest, Run_ManyJobsOfManySizes_EachElementOnce) {
  // Small jobs, which the caller does alone, between large ones: no worker may miss or repeat one.
  Hyperparameters given;
  given.Set("lr", 1.0);
  const UpdateRule& sgd = **RuleRegistry::Find("sgd");
  const Coefficients coefficients = sgd.Prepare(*sgd.Validate(given), 1);
  WorkerThreads threads(4);
  std::vector<float> parameter(70000, 0.0f);
  const std::vector<float> gradient(parameter.size(), -1.0f);
  std::vector<float> expected(parameter.size(), 0.0f);
  for (int job = 0; job < 300; ++job) {
    const size_t elements = parameter.size() >> (job % 6);
    UpdateTask task;
    task.coefficients = &coefficients;
    task.span.parameter = parameter.data();
    task.span.gradient = gradient.data();
    task.span.elements = static_cast<int64_t>(elements);
    SpanExecutor(&threads, DriverKind::kSimd).Run(sgd, {&task, 1});
    for (size_t i = 0; i < elements; ++i) expected[i] += 1;
  }
  EXPECT_EQ(parameter, expected);
}

TEST(SpanExecutorTest, Run_NoTasks_Returns) {
  WorkerThreads threads(2);
  SpanExecutor(&threads, DriverKind::kSimd).Run(**RuleRegistry::Find("adam"), {});
}

}  // namespace
}  // namespace optshard::testing

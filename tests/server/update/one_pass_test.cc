// Updating in one pass over the replicas' memory gives the bits of AverageOfGroups, Update and
// copying, in every driver and on every instruction set of this CPU.
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "server/update/cpu/span_executor.h"
#include "server/update/update_rule.h"
#include "tests/server/update/replica_data.h"
#include "tests/server/update/rule_cases.h"
#include "tests/testing/simd_targets.h"

namespace optshard::testing {
namespace {

constexpr uint32_t kSeed = 20250311;

// Trees by the sizes of their groups.
const std::vector<std::vector<int>>& Trees() {
  static const auto* const trees = new std::vector<std::vector<int>>{
      {1},    {2},       {1, 1}, {3},    {2, 1},       {1, 2}, {1, 1, 1}, {4},
      {2, 2}, {3, 1, 1}, {6},    {3, 3}, {1, 2, 3, 1}, {4, 4}, {8},       {1, 1, 1, 1, 1, 1, 1, 1},
      {5, 4}, {11},      {17, 3}};
  return *trees;
}

// With the most slots and the most options on.
std::vector<RuleCase> OneCaseOfEachRule() {
  std::vector<RuleCase> last;
  for (const RuleCase& rule_case : AllRuleCases()) {
    if (!last.empty() && last.back().rule == rule_case.rule) last.pop_back();
    last.push_back(rule_case);
  }
  return last;
}

class OnePassTest : public ::testing::Test {
 protected:
  ~OnePassTest() override { ChooseTarget(0); }

  // Of the scalar driver, and of the SIMD one on every target.
  void ExpectSameBits(const RuleCase& rule_case, const ReplicaShape& shape, uint32_t seed) const {
    const Coefficients coefficients = rule_case.rule->Prepare(rule_case.group, 1 + seed % 3);
    const ReplicaData start(rule_case, shape, seed);
    ReplicaData expected = start;
    expected.UpdateByParts(coefficients);
    const auto difference = [&](DriverKind driver) {
      ReplicaData data = start;
      rule_case.rule->Update(driver, coefficients, data.Span());
      return data.DifferenceTo(expected);
    };
    SCOPED_TRACE(absl::StrCat(rule_case.name, ", groups ", absl::StrJoin(shape.group_sizes, "+"),
                              ", missing ", shape.missing));
    ASSERT_EQ(difference(DriverKind::kScalar), "");
    for (const int64_t target : targets_) {
      ChooseTarget(target);
      ASSERT_EQ(difference(DriverKind::kSimd), "") << TargetNameOf(target);
    }
  }

 private:
  const std::vector<int64_t> targets_ = AllTargets();
};

TEST_F(OnePassTest, EveryRule_SpecialValuesAndMissingGradients_SameBits) {
  uint32_t seed = kSeed;
  for (const RuleCase& rule_case : AllRuleCases()) {
    for (const std::vector<int>& tree : {std::vector<int>{1}, {2}, {1, 2}}) {
      for (const int missing : {0, 1}) {
        ReplicaShape shape;
        shape.group_sizes = tree;
        shape.elements = 203;
        shape.missing = missing;
        ExpectSameBits(rule_case, shape, seed++);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(OnePassTest, EveryTree_SpecialValuesAndMissingGradients_SameBits) {
  uint32_t seed = kSeed;
  for (const RuleCase& rule_case : OneCaseOfEachRule()) {
    for (const std::vector<int>& tree : Trees()) {
      for (int missing = 0; missing <= 3; ++missing) {
        ReplicaShape shape;
        shape.group_sizes = tree;
        shape.elements = 203;
        shape.misalignment = static_cast<int>(seed % 16);
        shape.missing = missing;
        ExpectSameBits(rule_case, shape, seed++);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(OnePassTest, AnyLengthAndAlignment_SameBits) {
  uint32_t seed = kSeed;
  for (const RuleCase& rule_case : OneCaseOfEachRule()) {
    for (const std::vector<int>& tree : {std::vector<int>{1}, {2}, {1, 2}}) {
      for (int64_t elements = 0; elements <= 67; ++elements) {
        ReplicaShape shape;
        shape.group_sizes = tree;
        shape.elements = elements;
        shape.misalignment = static_cast<int>(seed % 16);
        ExpectSameBits(rule_case, shape, seed++);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Long enough for streaming stores, at the alignment that has them and at those that have not.
TEST_F(OnePassTest, LongSpans_SameBits) {
  uint32_t seed = kSeed;
  for (const RuleCase& rule_case : OneCaseOfEachRule()) {
    for (const int misalignment : {0, 4, 1}) {
      for (const std::vector<int>& tree : {std::vector<int>{2}, {1, 2}}) {
        ReplicaShape shape;
        shape.group_sizes = tree;
        shape.elements = 4107;  // not whole lines of vectors, either
        shape.misalignment = misalignment;
        ExpectSameBits(rule_case, shape, seed++);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(OnePassTest, AThousandReplicas_SameBits) {
  ReplicaShape shape;
  shape.group_sizes = std::vector<int>(125, 8);
  shape.elements = 41;
  shape.missing = 3;
  for (const RuleCase& rule_case : OneCaseOfEachRule()) {
    ExpectSameBits(rule_case, shape, kSeed);
    if (HasFatalFailure()) return;
  }
}

TEST_F(OnePassTest, AllGradientsMissing_CountAsZeros) {
  for (const std::vector<int>& tree : {std::vector<int>{1}, {2}, {1, 2}}) {
    ReplicaShape shape;
    shape.group_sizes = tree;
    shape.elements = 100;
    shape.missing = 3;
    for (const RuleCase& rule_case : OneCaseOfEachRule()) {
      ExpectSameBits(rule_case, shape, kSeed);
      if (HasFatalFailure()) return;
    }
  }
}

// Sgd with lr 1 on a parameter of zeros shows the average itself, its sign too.
TEST_F(OnePassTest, MinusZeroBesideAMissingGradient_IsPlusZero) {
  Hyperparameters given;
  given.Set("lr", 1.0);
  given.Set("maximize", true);
  const UpdateRule& sgd = **RuleRegistry::Find("sgd");
  const Coefficients coefficients = sgd.Prepare(*sgd.Validate(given), 1);
  const std::vector<float> minus_zeros(40, -0.0f);
  const int group_size = 2;
  for (const bool missing : {false, true}) {
    for (const DriverKind driver : {DriverKind::kScalar, DriverKind::kSimd}) {
      std::vector<float> parameter(40, -0.0f);
      const void* const gradients[] = {minus_zeros.data(), missing ? nullptr : minus_zeros.data()};
      SpanUpdate span;
      span.parameter = parameter.data();
      span.elements = 40;
      span.replicas.gradients = gradients;
      span.replicas.group_sizes = {&group_size, 1};
      sgd.Update(driver, coefficients, span);
      for (const float value : parameter) EXPECT_EQ(std::signbit(value), !missing);
    }
  }
}

TEST_F(OnePassTest, AveragedGradientAndCopies_CopiesAreWritten) {
  ReplicaShape shape;
  shape.group_sizes = {4};
  shape.elements = 5000;
  shape.averaged = true;
  for (const RuleCase& rule_case : AllRuleCases()) {
    ExpectSameBits(rule_case, shape, kSeed);
    if (HasFatalFailure()) return;
  }
}

TEST_F(OnePassTest, SharedParameters_NoCopies_SameBits) {
  ReplicaShape shape;
  shape.group_sizes = {4};
  shape.elements = 5000;
  shape.copies = false;
  for (const RuleCase& rule_case : AllRuleCases()) {
    ExpectSameBits(rule_case, shape, kSeed);
    if (HasFatalFailure()) return;
  }
}

TEST_F(OnePassTest, Threads_CutSpansOfReplicas_SameBits) {
  for (const RuleCase& rule_case : OneCaseOfEachRule()) {
    if (!rule_case.rule->spec().element_wise) continue;
    const Coefficients coefficients = rule_case.rule->Prepare(rule_case.group, 2);
    for (int count = 1; count <= 3; ++count) {
      WorkerThreads threads(count);
      std::vector<ReplicaData> expected, got;
      std::vector<UpdateTask> tasks;
      uint32_t seed = kSeed;
      for (const std::vector<int>& tree : {std::vector<int>{2}, {1, 2}, {1}}) {
        ReplicaShape shape;
        shape.group_sizes = tree;
        shape.elements = 20000 + seed % 100;
        shape.missing = static_cast<int>(seed % 2);
        shape.misalignment = static_cast<int>(seed % 3);
        expected.emplace_back(rule_case, shape, seed);
        got.emplace_back(rule_case, shape, seed++);
        expected.back().UpdateByParts(coefficients);
      }
      for (ReplicaData& data : got) tasks.push_back({&coefficients, data.Span()});
      SpanExecutor(&threads, DriverKind::kSimd).Run(*rule_case.rule, tasks);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].DifferenceTo(expected[i]), "") << rule_case.name << ", span " << i;
      }
    }
  }
}

TEST_F(OnePassTest, GroupsThatDoNotMatchTheReplicas_Dies) {
  const UpdateRule& sgd = **RuleRegistry::Find("sgd");
  std::vector<float> parameter(8), gradient(8);
  const void* const gradients[] = {gradient.data(), gradient.data()};
  SpanUpdate span;
  span.parameter = parameter.data();
  span.elements = 8;
  span.replicas.gradients = gradients;
  const std::vector<int> few = {1}, empty = {2, 0};
  for (const std::vector<int>& sizes : {few, empty}) {
    span.replicas.group_sizes = sizes;
    EXPECT_DEATH(sgd.Update(DriverKind::kSimd, Coefficients(), span), "gradients of 2 replicas");
  }
}

}  // namespace
}  // namespace optshard::testing

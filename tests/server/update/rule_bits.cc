// Every registered rule gives the same bits in every driver, on every instruction set of this CPU,
// at every length and alignment.
#include <xmmintrin.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "server/update/update_rule.h"
#include "tests/server/update/rule_cases.h"
#include "tests/testing/simd_targets.h"

namespace optshard::testing {
namespace {

constexpr uint32_t kSeed = 20240607;

class RuleBitsTest : public ::testing::Test {
 protected:
  ~RuleBitsTest() override { ChooseTarget(0); }
};

void ExpectSameBits(const RuleCase& rule_case, StepNumber step, const RuleData& start) {
  const Coefficients coefficients = rule_case.rule->Prepare(rule_case.group, step);
  RuleData scalar = start;
  rule_case.rule->Update(DriverKind::kScalar, coefficients, scalar.Span());
  RuleData simd = start;
  rule_case.rule->Update(DriverKind::kSimd, coefficients, simd.Span());
  ASSERT_EQ(simd.DifferenceTo(scalar), "") << rule_case.name << ", step " << step;
}

// `test` takes a seed and leaves the next one. The first that fails fatally is the last.
void ForEveryTargetAndRule(
    const std::function<void(const RuleCase& rule_case, uint32_t& seed)>& test) {
  uint32_t seed = kSeed;
  for (int64_t target : AllTargets()) {
    SCOPED_TRACE(TargetNameOf(target));
    ChooseTarget(target);
    for (const RuleCase& rule_case : AllRuleCases()) {
      test(rule_case, seed);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_F(RuleBitsTest, EveryTarget_AnyLengthAndAlignment_SameBitsAsScalar) {
  ForEveryTargetAndRule([](const RuleCase& rule_case, uint32_t& seed) {
    for (int64_t elements = 0; elements <= 67; ++elements) {
      const int misalignment = static_cast<int>(seed % 16);
      const RuleData start(&rule_case, elements, misalignment, /*specials=*/false, seed++);
      ExpectSameBits(rule_case, 1 + elements % 3, start);
      if (HasFatalFailure()) return;
    }
  });
}

TEST_F(RuleBitsTest, OrdinaryValues_EveryRule_GiveNoNan) {
  // Two NaN count as equal: comparing them would show nothing.
  uint32_t seed = kSeed;
  for (const RuleCase& rule_case : AllRuleCases()) {
    RuleData data(&rule_case, 1027, 0, /*specials=*/false, seed++);
    rule_case.rule->Update(DriverKind::kScalar, rule_case.rule->Prepare(rule_case.group, 2),
                           data.Span());
    EXPECT_FALSE(data.HasNan()) << rule_case.name;
  }
}

TEST_F(RuleBitsTest, EveryTarget_SpecialValues_SameBitsAsScalar) {
  ForEveryTargetAndRule([](const RuleCase& rule_case, uint32_t& seed) {
    for (StepNumber step : {1, 2, 1000}) {
      ExpectSameBits(rule_case, step, RuleData(&rule_case, 1027, 1, /*specials=*/true, seed++));
      if (HasFatalFailure()) return;
    }
  });
}

// Vectors divide a root by the correction of its bias without a division.
TEST_F(RuleBitsTest, EveryTarget_ManyStepsOfAdamW_SameBitsAsScalar) {
  ForEveryTargetAndRule([](const RuleCase& rule_case, uint32_t& seed) {
    if (rule_case.rule->spec().name != "adamw") return;
    for (StepNumber step = 1; step <= 3000; step += step / 2 + 1) {
      ExpectSameBits(rule_case, step, RuleData(&rule_case, 8192, 0, /*specials=*/false, seed++));
      if (HasFatalFailure()) return;
    }
  });
}

TEST_F(RuleBitsTest, Targets_OnThisCpu_IncludeTheBaselineAndAVectorOne) {
  // Otherwise the tests above would compare the scalar driver with itself.
  EXPECT_GE(AllTargets().size(), 2u);
}

TEST_F(RuleBitsTest, CallerFlushesDenormalsAndRoundsDown_BitsUnchanged) {
  const unsigned saved = _mm_getcsr();
  for (const RuleCase& rule_case : AllRuleCases()) {
    const RuleData start(&rule_case, 203, 0, /*specials=*/true, kSeed);
    const Coefficients coefficients = rule_case.rule->Prepare(rule_case.group, 2);
    for (DriverKind driver : {DriverKind::kScalar, DriverKind::kSimd}) {
      RuleData expected = start;
      rule_case.rule->Update(driver, coefficients, expected.Span());
      RuleData flushed = start;
      _mm_setcsr(saved | _MM_FLUSH_ZERO_ON | 0x0040 /* denormals are zero */ | _MM_ROUND_DOWN);
      rule_case.rule->Update(driver, coefficients, flushed.Span());
      const unsigned after = _mm_getcsr();
      _mm_setcsr(saved);
      EXPECT_EQ(flushed.DifferenceTo(expected), "") << rule_case.name;
      EXPECT_EQ(after & 0xe040u, 0xa040u) << "the caller's mode was not put back";
    }
  }
}

}  // namespace
}  // namespace optshard::testing

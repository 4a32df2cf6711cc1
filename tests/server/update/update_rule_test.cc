#include "server/update/update_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "common/parameter_space.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/update/option_spec.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

const UpdateRule& Rule(absl::string_view name) {
  absl::StatusOr<const UpdateRule*> rule = RuleRegistry::Find(name);
  EXPECT_TRUE(rule.ok()) << rule.status();
  return **rule;
}

Hyperparameters With(absl::string_view name, HyperValue value) {
  Hyperparameters group;
  group.Set(name, std::move(value));
  return group;
}

std::string Error(absl::string_view rule, const Hyperparameters& given) {
  const absl::Status status = Rule(rule).Validate(given).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

std::vector<std::string> SlotNames(const UpdateRule& rule, const Hyperparameters& given) {
  std::vector<std::string> names;
  for (const Slot& slot : rule.Slots(*rule.Validate(given))) names.push_back(slot.name);
  return names;
}

TEST(RuleRegistryTest, Find_UnknownRule_ListsTheKnownOnes) {
  const absl::Status status = RuleRegistry::Find("adamaxx").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  std::vector<std::string> known;
  for (const UpdateRule* rule : RuleRegistry::All()) known.push_back(rule->spec().name);
  EXPECT_THAT(known, IsSupersetOf({"adam", "adamw", "sgd"}));
  EXPECT_TRUE(std::is_sorted(known.begin(), known.end()));
  EXPECT_EQ(status.message(), "no update rule \"adamaxx\"; known rules: " +
                                  absl::StrJoin(known, ", ") + "; did you mean \"adamax\"?");
}

TEST(RuleRegistryTest, Register_SameNameTwice_Dies) {
  EXPECT_DEATH(RuleRegistry::Register(&Rule("adam")), "two rules are named \"adam\"");
}

TEST(UpdateRuleTest, Validate_NothingGiven_PyTorchDefaults) {
  EXPECT_EQ(Rule("adam").Validate({})->ToString(),
            "amsgrad=false betas=[0.9, 0.999] eps=1e-08 lr=0.001 maximize=false weight_decay=0");
  EXPECT_EQ(Rule("adamw").Validate({})->ToString(),
            "amsgrad=false betas=[0.9, 0.999] eps=1e-08 lr=0.001 maximize=false weight_decay=0.01");
  EXPECT_EQ(Rule("sgd").Validate({})->ToString(),
            "dampening=0 lr=0.001 maximize=false momentum=0 nesterov=false weight_decay=0");
}

TEST(UpdateRuleTest, Validate_GivenValues_AreKept) {
  const Hyperparameters group = *Rule("adam").Validate(With("lr", 0.5));
  EXPECT_EQ(group.Number("lr"), 0.5);
  EXPECT_EQ(group.List("betas"), (Numbers{0.9, 0.999}));
}

TEST(UpdateRuleTest, Validate_UnknownOption_ListsTheKnownOnes) {
  EXPECT_EQ(Error("adam", With("momentum", 0.9)),
            "rule \"adam\" has no option \"momentum\"; it has lr, betas, eps, weight_decay, "
            "amsgrad, maximize");
}

TEST(UpdateRuleTest, Validate_WrongType_NamesBothTypes) {
  EXPECT_EQ(Error("adam", With("betas", 0.9)),
            "rule \"adam\": option \"betas\" is a number, 0.9; it must be a pair of numbers: two "
            "numbers in [0, 1)");
  EXPECT_THAT(Error("sgd", With("nesterov", 1.0)), HasSubstr("it must be a flag"));
}

TEST(UpdateRuleTest, Validate_OutOfRange_NamesRuleOptionValueAndRange) {
  EXPECT_EQ(Error("adamw", With("lr", kNan)),
            "rule \"adamw\": option \"lr\" is nan; it must be a finite number, >= 0");
  for (const char* rule : {"adam", "adamw", "sgd"}) {
    for (double bad : {kNan, kInfinity, -1e-9}) {
      EXPECT_THAT(Error(rule, With("lr", bad)), HasSubstr("\"lr\""));
      EXPECT_THAT(Error(rule, With("weight_decay", bad)), HasSubstr("\"weight_decay\""));
    }
  }
  for (double bad : {kNan, kInfinity, -1e-9}) {
    EXPECT_THAT(Error("adam", With("eps", bad)), HasSubstr("\"eps\""));
    EXPECT_THAT(Error("sgd", With("momentum", bad)), HasSubstr("\"momentum\""));
  }
  EXPECT_THAT(Error("sgd", With("dampening", kNan)), HasSubstr("\"dampening\""));
}

TEST(UpdateRuleTest, Validate_Betas_MustBeAtLeastZeroAndBelowOne) {
  for (double bad : {1.0, -0.1, kNan}) {
    EXPECT_THAT(Error("adam", With("betas", Numbers{bad, 0.999})), HasSubstr("[0, 1)"));
    EXPECT_THAT(Error("adamw", With("betas", Numbers{0.9, bad})), HasSubstr("[0, 1)"));
  }
  EXPECT_TRUE(Rule("adam").Validate(With("betas", Numbers{0, 0})).ok());
}

TEST(OptionSpecTest, NumbersOutOfRange_AreNotValid) {
  const OptionSpec whole = options::Whole("ns_steps", 5, 0, 99, "");
  EXPECT_EQ(whole.range, "a whole number from 0 to 99");
  for (double good : {0.0, 5.0, 99.0}) EXPECT_TRUE(whole.valid(good)) << good;
  for (double bad : {-1.0, 100.0, 0.5, kNan, kInfinity}) EXPECT_FALSE(whole.valid(bad)) << bad;
  const OptionSpec positive = options::Positive("eps", 1, "");
  EXPECT_TRUE(positive.valid(1e-300));
  for (double bad : {0.0, -1.0, kNan, kInfinity}) EXPECT_FALSE(positive.valid(bad)) << bad;
  const OptionSpec three = options::FiniteNumbers("coefficients", {1, 2, 3}, "");
  EXPECT_EQ(three.range, "3 finite numbers");
  EXPECT_TRUE(three.valid(Numbers{0, -1, 5}));
  EXPECT_FALSE(three.valid(Numbers{0, -1, kNan}));
}

TEST(OptionSpecTest, PairsOutOfRange_AreNotValid) {
  const OptionSpec non_negative = options::NonNegativePair("eps", {0, 1}, "");
  EXPECT_TRUE(non_negative.valid(Numbers{0, 0}));
  for (double bad : {-1.0, kNan, kInfinity}) {
    EXPECT_FALSE(non_negative.valid(Numbers{bad, 1})) << bad;
    EXPECT_FALSE(non_negative.valid(Numbers{1, bad})) << bad;
  }
  const OptionSpec around = options::Around1("etas", {0.5, 1.2}, "");
  EXPECT_TRUE(around.valid(Numbers{0.9, 1.1}));
  for (double bad : {0.0, 1.0, 1.05, kNan}) EXPECT_FALSE(around.valid(Numbers{bad, 1.1})) << bad;
  for (double bad : {1.0, kNan, kInfinity}) EXPECT_FALSE(around.valid(Numbers{0.9, bad})) << bad;
  const OptionSpec ascending = options::Ascending("step_sizes", {1, 2}, "");
  EXPECT_TRUE(ascending.valid(Numbers{0, 0}));
  for (double bad : {-1.0, 2.5, kNan}) EXPECT_FALSE(ascending.valid(Numbers{bad, 2})) << bad;
  EXPECT_FALSE(ascending.valid(Numbers{1, kInfinity}));
}

TEST(OptionSpecTest, Choice_IsOneOfItsNamesAndBeginsWithTheFirst) {
  const OptionSpec choice = options::Choice("mode", {"slow", "fast"}, "");
  EXPECT_EQ(choice.default_value, HyperValue(std::string("slow")));
  EXPECT_EQ(choice.range, "\"slow\" or \"fast\"");
  EXPECT_TRUE(choice.valid(std::string("fast")));
  EXPECT_FALSE(choice.valid(std::string("fats")));
}

TEST(UpdateRuleTest, Validate_AnotherNumberOfNumbers_NamesBoth) {
  EXPECT_THAT(Error("adam", With("betas", Numbers{0.9, 0.99, 0.999})),
              HasSubstr("is 3 numbers, [0.9, 0.99, 0.999]; it must be a pair of numbers"));
  EXPECT_THAT(Error("adam", With("lr", std::string("high"))),
              HasSubstr("is a name, \"high\"; it must be a number"));
}

TEST(UpdateRuleTest, Validate_NesterovWithoutMomentumOrWithDampening_SaysWhatItNeeds) {
  Hyperparameters group = With("nesterov", true);
  EXPECT_THAT(Error("sgd", group),
              AllOf(HasSubstr("rule \"sgd\""), HasSubstr("\"momentum\" > 0, which is 0")));
  group.Set("momentum", 0.9);
  EXPECT_TRUE(Rule("sgd").Validate(group).ok());
  group.Set("dampening", 0.1);
  EXPECT_THAT(Error("sgd", group), HasSubstr("\"dampening\" = 0, which is 0.1"));
}

TEST(UpdateRuleTest, Slots_FollowTheStructuralOptions) {
  EXPECT_THAT(SlotNames(Rule("adam"), {}), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(SlotNames(Rule("adamw"), With("amsgrad", true)),
              ElementsAre("exp_avg", "exp_avg_sq", "max_exp_avg_sq"));
  EXPECT_THAT(SlotNames(Rule("sgd"), {}), ElementsAre());
  EXPECT_THAT(SlotNames(Rule("sgd"), With("momentum", 0.9)), ElementsAre("momentum_buffer"));
}

TEST(UpdateRuleTest, ValidateChange_SlotsStay_IsAllowed) {
  const UpdateRule& sgd = Rule("sgd");
  const Hyperparameters slow = *sgd.Validate(With("momentum", 0.9));
  Hyperparameters fast = With("momentum", 0.95);
  fast.Set("lr", 0.1);
  EXPECT_TRUE(sgd.ValidateChange(slow, *sgd.Validate(fast)).ok());
}

TEST(UpdateRuleTest, ValidateChange_SlotsChange_NamesTheOption) {
  const UpdateRule& sgd = Rule("sgd");
  const absl::Status status =
      sgd.ValidateChange(*sgd.Validate(With("momentum", 0.9)), *sgd.Validate({}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("\"momentum\" was constructed as 0.9 and is now 0"),
                    HasSubstr("from momentum_buffer to none")));
}

TEST(UpdateRuleTest, Slots_OfEqualNumber_AreToldApart) {
  const UpdateRule& rule = Rule("rmsprop");
  const Hyperparameters momentum = *rule.Validate(With("momentum", 0.9));
  const Hyperparameters centered = *rule.Validate(With("centered", true));
  EXPECT_EQ(rule.Slots(momentum)[1].name, "momentum_buffer");
  EXPECT_EQ(rule.Slots(centered)[1].name, "grad_avg");
  EXPECT_EQ(rule.Prepare(momentum, 1).slots, 0b011u);
  EXPECT_EQ(rule.Prepare(centered, 1).slots, 0b101u);
}

TEST(UpdateRuleTest, Slots_WithAnInitialValue_HaveTheOptions) {
  const UpdateRule& rule = Rule("adagrad");
  EXPECT_EQ(rule.Slots(*rule.Validate({}))[0].initial, 0);
  EXPECT_EQ(rule.Slots(*rule.Validate(With("initial_accumulator_value", 0.5)))[0].initial, 0.5f);
}

// A rule of a declaration only.
class DeclaredRule final : public UpdateRule {
 public:
  explicit DeclaredRule(RuleSpec spec) : spec_(std::move(spec)) { spec_.name = "declared"; }
  const RuleSpec& spec() const override { return spec_; }
  void Update(DriverKind, const Coefficients&, const SpanUpdate&) const override {}

 protected:
  void SetCoefficients(const Hyperparameters&, StepNumber, Coefficients*) const override {}

 private:
  RuleSpec spec_;
};

absl::optional<std::vector<int64_t>> NoShape(absl::Span<const int64_t>) { return absl::nullopt; }

TEST(RuleRegistryTest, Register_WrongDeclaration_Dies) {
  const auto slots = [](std::vector<SlotSpec> slots) {
    RuleSpec spec;
    spec.slots = std::move(slots);
    return spec;
  };
  const auto scalars = [](std::vector<ScalarSlotSpec> slots) {
    RuleSpec spec;
    spec.scalar_slots = std::move(slots);
    return spec;
  };
  const struct {
    RuleSpec spec;
    const char* error;
  } cases[] = {
      {scalars({{"a", ""}, {"b", ""}, {"c", ""}}),
       "3 slots of one number a parameter, expected at most 2"},
      {scalars({{"step", ""}}), "a slot \"step\", which every rule may have"},
      {scalars({{"a", "", "lr"}}), "begins with \"lr\""},
      {scalars({{"a", ""}, {"a", ""}}), "two slots \"a\""},
      {slots({{"a", ""}, {"b", ""}, {"c", ""}, {"d", ""}, {"e", ""}}),
       "5 slots, expected at most 4"},
      {slots({{"rows", "", "", "", EightBit::kNo, {&NoShape, ""}}}),
       "\"rows\" has a shape of its own, expected a rule that is not element-wise"},
      {slots({{"master", ""}}), "a slot \"master\", which every rule may have"},
      {slots({{"step", ""}}), "a slot \"step\", which every rule may have"},
      {slots({{"a", "", "amsgard"}}), "exists with \"amsgard\""},
      {slots({{"a", "", "", "lr"}}), "begins with \"lr\""},
      {[&] {
         RuleSpec spec = slots({{"a", "", "", "maximize"}});
         spec.options = {options::Flag("maximize", false, "")};
         return spec;
       }(),
       "begins with \"maximize\""},
  };
  for (const auto& each : cases) {
    const DeclaredRule rule(each.spec);
    EXPECT_DEATH(RuleRegistry::Register(&rule), each.error);
  }
}

TEST(UpdateRuleTest, Adafactor_SlotsByShape_AreThoseOfPyTorch) {
  using Shape = std::vector<int64_t>;
  const UpdateRule& rule = Rule("adafactor");
  const std::vector<Slot> slots = rule.Slots(*rule.Validate({}));
  ASSERT_EQ(slots.size(), 3u);
  const struct {
    Shape parameter;
    std::vector<absl::optional<Shape>> slots;
    std::vector<int64_t> values;
  } cases[] = {
      {{4, 6}, {Shape{4, 1}, Shape{1, 6}, absl::nullopt}, {4, 6, 0}},
      {{5, 2, 3, 7}, {Shape{5, 2, 3, 1}, Shape{5, 2, 1, 7}, absl::nullopt}, {30, 70, 0}},
      {{9}, {absl::nullopt, absl::nullopt, Shape{9}}, {0, 0, 9}},
      {{}, {absl::nullopt, absl::nullopt, Shape{}}, {0, 0, 1}},
      {{0, 5}, {absl::nullopt, absl::nullopt, Shape{0, 5}}, {0, 0, 0}},
  };
  for (const auto& each : cases) {
    for (size_t k = 0; k < slots.size(); ++k) {
      EXPECT_EQ(slots[k].ShapeFor(each.parameter), each.slots[k]) << slots[k].name;
      EXPECT_EQ(slots[k].ValuesFor(each.parameter, ElementsOf(each.parameter)), each.values[k]);
    }
  }
}

// As in PyTorch, whose slots are made by the first step: a warm-up begins before it.
TEST(UpdateRuleTest, FirstStep_SlotsThatBeginWithLr_TakeTheLrOfThatStep) {
  for (const char* const name : {"asgd", "rprop"}) {
    const UpdateRule& rule = Rule(name);
    const Hyperparameters constructed = *rule.Validate(With("lr", 0.5));
    Hyperparameters now = constructed;
    now.Set("lr", 0.125);
    float parameter = 1;
    const float gradient = 1;
    std::vector<float> slots;
    for (const Slot& slot : rule.Slots(constructed)) {
      slots.push_back(static_cast<float>(slot.initial));
    }
    SpanUpdate span;
    span.parameter = &parameter;
    span.gradient = &gradient;
    for (size_t k = 0; k < slots.size(); ++k) span.slots[k] = &slots[k];
    span.elements = 1;
    rule.Update(DriverKind::kScalar,
                rule.Prepare(now, 1, DType::kFloat32, rule.InitialScalarSlots(constructed)), span);
    EXPECT_NEAR(parameter, 0.875, 1e-4) << name;
  }
}

TEST(CoefficientsTest, Set_IndexThatThereIsNot_Dies) {
  Coefficients coefficients;
  EXPECT_DEATH(coefficients.Set(kMaxCoefficients, 1), "expected one of 0 to 15");
}

TEST(CoefficientsTest, SetWithRest_LosesNothing) {
  Coefficients coefficients;
  coefficients.SetWithRest(0, 1, 0.9);
  EXPECT_EQ(coefficients.values[0], static_cast<double>(0.9f));
  EXPECT_FLOAT_EQ(static_cast<float>(coefficients.values[1]), static_cast<float>(0.9 - 0.9f));
  coefficients.arithmetic = DType::kFloat64;
  coefficients.SetWithRest(0, 1, 0.9);
  EXPECT_EQ(coefficients.values[0], 0.9);
  EXPECT_EQ(coefficients.values[1], 0);
}

TEST(UpdateRuleTest, Update_WrongSlots_Dies) {
  float value = 1;
  SpanUpdate span;
  span.parameter = &value;
  span.slots[0] = &value;
  span.gradient = &value;
  span.elements = 1;
  const UpdateRule& adam = Rule("adam");
  EXPECT_DEATH(adam.Update(DriverKind::kSimd, Coefficients{}, span),
               "\"adam\" has no variant of its formula with the slots 0x0");
  EXPECT_DEATH(adam.Update(DriverKind::kSimd, adam.Prepare(*adam.Validate({}), 1), span),
               "\"adam\": 1 slots were given, expected 2");
}

TEST(UpdateRuleTest, Update_NoElements_NullPointersAreFine) {
  Rule("adam").Update(DriverKind::kSimd, Coefficients{}, SpanUpdate{});
}

// By hand, in numbers whose squares are exact.
TEST(UpdateRuleTest, Update_AdamWithAmsgrad_DividesByTheLargestSquareSoFar) {
  Hyperparameters group = With("amsgrad", true);
  group.Set("lr", 1.0);
  group.Set("betas", Numbers{0.5, 0.5});
  group.Set("eps", 0.0);
  const UpdateRule& rule = Rule("adam");
  group = *rule.Validate(group);
  float parameter = 0;
  float gradient = 2;
  float slots[3] = {};
  SpanUpdate span;
  span.parameter = &parameter;
  span.gradient = &gradient;
  for (int s = 0; s < 3; ++s) span.slots[s] = &slots[s];
  span.elements = 1;

  // Its own square counts already: sqrt(2) / sqrt(1 - 0.5) is 2.
  rule.Update(DriverKind::kScalar, rule.Prepare(group, 1), span);
  EXPECT_EQ(slots[0], 1);
  EXPECT_EQ(slots[1], 2);
  EXPECT_EQ(slots[2], 2);
  EXPECT_FLOAT_EQ(parameter, -1);

  // The largest is taken before the bias is corrected: sqrt(2) / sqrt(1 - 0.25).
  gradient = 0;
  parameter = 0;
  rule.Update(DriverKind::kScalar, rule.Prepare(group, 2), span);
  EXPECT_EQ(slots[0], 0.5);
  EXPECT_EQ(slots[1], 1);
  EXPECT_EQ(slots[2], 2);
  EXPECT_FLOAT_EQ(parameter, -(1 / 0.75F) * 0.5F / (std::sqrt(2.0F) / std::sqrt(0.75F)));
}

}  // namespace
}  // namespace optshard

// Which rules can keep their slots in 8 bits, and how.
#include "server/update/state_support.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

const UpdateRule& Rule(absl::string_view name) { return **RuleRegistry::Find(name); }

TEST(StateSupport, RulesWhoseSlotsAreAllDeclared_TakeEightBits) {
  for (const char* const name : {"adam", "adamw", "lamb", "lion", "muon", "sgd"}) {
    for (const StateFormat format : {StateFormat::kInt8Dynamic, StateFormat::kInt8Companded}) {
      EXPECT_TRUE(CheckStateFormat(Rule(name), format).ok()) << name;
    }
  }
}

TEST(StateSupport, OtherRules_AreRefusedWithTheWayOut) {
  const absl::Status status = CheckStateFormat(Rule("rmsprop"), StateFormat::kInt8Companded);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rule \"rmsprop\": state_dtype is \"int8_companded\", but square_avg, "
                        "momentum_buffer, grad_avg cannot be kept in 8 bits; choose \"float32\" or "
                        "\"bfloat16\", or a rule that can: adam, adamw"));
  EXPECT_TRUE(CheckStateFormat(Rule("rmsprop"), StateFormat::kBFloat16).ok());
}

TEST(StateSupport, Declaration_DecidesTheCode) {
  EXPECT_EQ(BlockCodeOf(StateFormat::kInt8Dynamic, EightBit::kSigned), BlockCode::kDynamicSigned);
  EXPECT_EQ(BlockCodeOf(StateFormat::kInt8Dynamic, EightBit::kNonNegative),
            BlockCode::kDynamicUnsigned);
  EXPECT_EQ(BlockCodeOf(StateFormat::kInt8Companded, EightBit::kSigned),
            BlockCode::kCompandedAverage);
  EXPECT_EQ(BlockCodeOf(StateFormat::kInt8Companded, EightBit::kNonNegative),
            BlockCode::kCompandedSquare);
}

}  // namespace
}  // namespace optshard

#include "benchmarks/stream_rule.h"

#include <gtest/gtest.h>

#include <vector>

namespace optshard {
namespace {

TEST(StreamRule, OddLength_EveryElementIsWritten) {
  for (const DriverKind driver : {DriverKind::kScalar, DriverKind::kSimd}) {
    const std::vector<float> gradient(1003, 2.0f);
    std::vector<float> parameter(1003, 1.0f), first(1003, 10.0f), second(1003, 20.0f);
    SpanUpdate span;
    span.parameter = parameter.data();
    span.gradient = gradient.data();
    span.slots = {first.data(), second.data()};
    span.elements = 1003;
    StreamRule().Update(driver, StreamRule().Prepare({}, 1), span);
    EXPECT_EQ(parameter, std::vector<float>(1003, 3.0f));
    EXPECT_EQ(first, std::vector<float>(1003, 12.0f));
    EXPECT_EQ(second, std::vector<float>(1003, 22.0f));
  }
}

}  // namespace
}  // namespace optshard

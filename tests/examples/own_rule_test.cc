// The rule of examples/own_rule: its numbers, and a sharded optimizer that steps by it. That its
// bits are equal in all drivers is shown by rule_bits, which is linked into this test.
#include <torch/torch.h>

#include <vector>

#include "client/sharded_optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/client_ranks.h"

namespace optshard::testing {
namespace {

RuleOptions Signum() { return RuleOptions("signum").Set("lr", 0.25).Set("momentum", 0.5); }

TEST(OwnRule_SteppedByTwoRanks, GivesTheFormulasNumbers) {
  const std::vector<absl::Status> thrown = RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor parameter = torch::ones({4}).requires_grad_();
    ShardedOptimizer optimizer({parameter}, Signum(), options);
    for (const float sign : {1.0f, -0.25f}) {
      // The average over the ranks is (2, -2, 0, 0) times the sign.
      const float own = options.rank == 0 ? 3 : 1;
      parameter.mutable_grad() = torch::tensor({own, -own, 2 - own, 0.0f}) * sign;
      parameter.mutable_grad()[2] = options.rank == 0 ? 1 : -1;
      optimizer.step();
    }
    // Momentum (1, -1, 0, 0), then (0.25, -0.25, 0, 0).
    EXPECT_TRUE(parameter.detach().equal(torch::tensor({0.5f, 1.5f, 1.0f, 1.0f}))) << parameter;
  });
  for (const absl::Status& status : thrown) EXPECT_TRUE(status.ok()) << status;
}

TEST(OwnRule_BadOption, IsRefusedAsThoseOfAnyRule) {
  try {
    Signum().Set("momentun", 0.5).Complete();
    ADD_FAILURE() << "an unknown option was taken";
  } catch (const StatusError& error) {
    EXPECT_THAT(std::string(error.what()), ::testing::HasSubstr("did you mean \"momentum\""));
  }
}

}  // namespace
}  // namespace optshard::testing

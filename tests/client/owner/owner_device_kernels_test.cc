// What a trainer for GPUs has with the client alone.
#include <gtest/gtest.h>

#include "server/update/cuda/formula_kernels.h"
#include "server/update/update_rule.h"

namespace optshard {
namespace {

TEST(OwnerDeviceTest, Client_LinksTheKernelsOfItsElementWiseRules) {
  int rules = 0;
  for (const UpdateRule* const rule : RuleRegistry::All()) {
    if (rule->formula() == nullptr) continue;
    EXPECT_NE(FormulaKernelRegistry::Find(rule->formula()), nullptr) << rule->spec().name;
    ++rules;
  }
  EXPECT_GT(rules, 5);
}

}  // namespace
}  // namespace optshard

// What a trainer for GPUs has with the client alone.
#include <gtest/gtest.h>

#include <string>

#include "server/update/cuda/formula_kernels.h"
#include "server/update/cuda/sequenced_rule.h"
#include "server/update/update_rule.h"

namespace optshard {
namespace {

TEST(OwnerDeviceTest, Client_LinksTheKernelsOfItsRules) {
  int rules = 0;
  for (const UpdateRule* const rule : RuleRegistry::All()) {
    const std::string& name = rule->spec().name;
    if (rule->formula() != nullptr) {
      EXPECT_NE(FormulaKernelRegistry::Find(rule->formula()), nullptr) << name;
    } else {
      EXPECT_NE(SequencedRule::Find(name), nullptr) << name;
    }
    ++rules;
  }
  EXPECT_GT(rules, 10);
}

}  // namespace
}  // namespace optshard

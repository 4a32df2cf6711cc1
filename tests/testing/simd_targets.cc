#include "tests/testing/simd_targets.h"

#include "hwy/targets.h"

namespace optshard::testing {

void ChooseTarget(int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::vector<int64_t> AllTargets() {
  ChooseTarget(0);
  return hwy::SupportedAndGeneratedTargets();
}

std::string TargetNameOf(int64_t target) { return hwy::TargetName(target); }

}  // namespace optshard::testing

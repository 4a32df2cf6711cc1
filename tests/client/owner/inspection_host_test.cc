#include "client/owner/inspection_host.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(InspectionHost_SameAddress_IsSharedAlsoAtPort0, UntilTheLastHasGone) {
  const std::shared_ptr<InspectionHost> first = InspectionHost::Get("127.0.0.1:0").value();
  const std::shared_ptr<InspectionHost> second = InspectionHost::Get("127.0.0.1:0").value();
  EXPECT_EQ(first, second);
  const std::shared_ptr<InspectionHost> other = InspectionHost::Get("localhost:0").value();
  EXPECT_NE(first->port(), other->port());
}

TEST(InspectionHost_FixedPort_IsFreeAgain, OnceTheLastHasGone) {
  std::shared_ptr<InspectionHost> host = InspectionHost::Get("127.0.0.1:0").value();
  const std::string fixed = absl::StrCat("127.0.0.1:", host->port());
  EXPECT_EQ(InspectionHost::Get(fixed).status().code(), absl::StatusCode::kUnavailable);
  host.reset();
  EXPECT_TRUE(InspectionHost::Get(fixed).ok());
}

}  // namespace
}  // namespace optshard
